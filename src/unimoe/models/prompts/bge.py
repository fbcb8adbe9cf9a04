"""The prompt of BGE's language models: bge-reranker-v2-gemma, and what FlagEmbedding trains without one of its own."""

from __future__ import annotations

from typing import Any

from unimoe.config import TEMPLATES, PromptConfig

_QUESTION = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)


class BgeTemplate:
    """Query A, passage B, and a question that is always the same, as FlagEmbedding's ``FlagLLMReranker`` asks.

    It tokenizes line by line, and scores the logit of ``Yes`` alone. See ``Template``.
    """

    answers = ("Yes",)

    def __init__(self, prompt: PromptConfig) -> None: ...

    def conversation(self, tokenizer: Any) -> tuple[str, str | tuple[str, ...]]:
        """Return the token that begins a text, unless it is also the padding's, and the question."""
        first = tokenizer.bos_token
        return "" if first is None or first == tokenizer.pad_token else first, ("\n", _QUESTION)

    def before_document(self, query: str) -> str | tuple[str, ...]:
        """Return the query, and what comes before the passage."""
        return f"A: {query}", "\n", "B: "

    def around_document(self) -> tuple[str, str]:
        """Return what comes before the passage, and between it and the query."""
        return "B: ", "\nA: "


TEMPLATES.add("bge", BgeTemplate)
