"""The ``prompt`` section of a config: how a pair becomes the text of a judgement, and a text what is embedded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from unimoe.config.base import Section, checked
from unimoe.core.registry import Registry

QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


TEMPLATES: Registry[Any] = Registry("prompt template", "unimoe.models.prompts", "unimoe.prompts")
"""Classes by name; see ``models.prompts.Template``."""


def _answer(given: Any) -> Any:
    if isinstance(given, bool):  # YAML's true and false are words here
        return str(given).lower()
    if (isinstance(given, str) and given) or (isinstance(given, int) and given >= 0):
        return given
    raise ValueError("must be a word of one token, or the id of a token")


Answer = Annotated[str | int, BeforeValidator(_answer)]


def _in_a_list(given: Any) -> Any:
    return list(given) if isinstance(given, list | tuple) else given if given is None else [given]


class PromptConfig(Section):
    r"""How a pair becomes text for the yes/no judgement, and a text for the embedding.

    Attributes:
        template: ``qwen3`` is exactly Qwen3-Reranker's format; ``chat`` uses the model's own chat template; ``plain``
            has lines ``Document:``, ``Query:`` and ``Relevant:`` and no conversation, for models to be trained; ``bge``
            is the prompt of bge-reranker-v2-gemma, with fixed words; ``rank1`` and ``think`` open a thought for
            ``reasoning:``, by Rank1's words or in the chat template.
        order: which of query and document comes first; recorded in every result.
        instruction: the task in one sentence, for reranking; with ``plain`` it may be empty.
        field_separator: between instruction, query and document: one line end in Qwen3's README, two in its code.
        query_prefix: text before a query to embed; Qwen3 writes ``Instruct: {task}\nQuery:``.
        document_prefix: text before a document to embed.
        embedding_suffix: a token of the vocabulary, or text, whose last token carries the embedding.
        answers: the word or token id that says relevant, and that which says not relevant: the score is the difference
            of their logits, or the logit of a single one; null for the model's own, ``[yes, no]``, ``[true, false]`` of
            monoT5, or those of the template.
    """

    template: Annotated[str, checked(TEMPLATES.checked)] = "qwen3"
    order: Literal["query_first", "document_first"] = "query_first"
    instruction: str = QWEN3_INSTRUCTION
    field_separator: Literal["\n", "\n\n"] = "\n"
    query_prefix: str = f"Instruct: {QWEN3_INSTRUCTION}\nQuery:"
    document_prefix: str = ""
    embedding_suffix: Annotated[str, Field(min_length=1)] = "<|endoftext|>"
    answers: Annotated[list[Answer], BeforeValidator(_in_a_list), Field(min_length=1, max_length=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _answers_of_before(cls, given: Any) -> Any:
        """Take ``yes`` and ``no``, the keys of configs and checkpoints of before there was ``answers``."""
        if not isinstance(given, dict) or given.keys().isdisjoint({"yes", "no"}):
            return given
        before = {key: given[key] for key in ("yes", "no") if given.get(key) is not None}
        others = {key: value for key, value in given.items() if key not in ("yes", "no")}
        if not before:
            return others
        if given.get("answers") is not None:
            raise ValueError("yes and no are in answers now; write answers: [YES, NO] alone")
        return others | {"answers": [before.get("yes", "yes"), before.get("no", "no")]}

    @property
    def settings(self) -> dict[str, Any]:
        """The keys and values that are set; answers of the model's own are left out.

        Two answers have the keys that they had, so that results and trainings of before keep their names.
        """
        found = self.model_dump(exclude_none=True)
        if self.answers and len(self.answers) == 2:
            found["yes"], found["no"] = found.pop("answers")
        return found
