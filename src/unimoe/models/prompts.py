"""How texts become token ids: the yes/no question about a pair, and the text to embed.

The Qwen3 formats are those of the model cards of Qwen3-Reranker and Qwen3-Embedding. Only documents are truncated; a
query that leaves no room for its document is refused by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from unimoe.config import PromptConfig
from unimoe.errors import DataError, InputError, UsageError
from unimoe.io import hash_json
from unimoe.models.embedder import TextKind
from unimoe.models.quiet import first_line

_QWEN3_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_QWEN3_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_BODY_MARK = "\u2063BODY\u2063"


def prompt_name(prompt: PromptConfig, max_length: int) -> str:
    """Name and content hash of a prompt, as results record it."""
    return f"{prompt.template}/{prompt.order}@{hash_json([prompt.model_dump(), max_length])}"


@dataclass(frozen=True)
class Frame:
    """The tokens around the body of a question."""

    prefix: list[int]
    suffix: list[int]


class PairTokenizer:
    """Turns query-document pairs into the token ids of one yes/no question each.

    Args:
        tokenizer: the model's tokenizer.
        prompt: template, order, instruction and separator.
        max_length: tokens of one question, template included.

    Attributes:
        order: which side of a pair comes first.
        frame: the tokens around the body.
        room: tokens of the body.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self.order: Literal["query_first", "document_first"] = prompt.order
        frame = _qwen3_frame(tokenizer) if prompt.template == "qwen3" else _chat_frame(tokenizer, prompt.instruction)
        self.frame = frame
        self.room = max_length - len(frame.prefix) - len(frame.suffix)
        if self.room < 8:
            raise UsageError(f"model.max_length {max_length} leaves no room beside the prompt; raise it")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Token ids of each ``(query, document)`` pair, at most ``max_length`` long.

        Raises:
            InputError: a query alone fills the length; the message quotes its beginning.
        """
        bodies = self._document_first(pairs) if self._prompt.order == "document_first" else self._query_first(pairs)
        return [self.frame.prefix + body + self.frame.suffix for body in bodies]

    def body_texts(self, query: str, document: str) -> list[str]:
        """The texts of a question's body, which are tokenised apart and follow each other; the document's is cut."""
        if self._prompt.order == "query_first":
            return [self._head(query) + document]
        before, after = self._around()
        return [before + document, after + query]

    def _query_first(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        # The body is tokenised whole, as in Qwen's code: "<Document>: " and "Paris" apart are other tokens than joined.
        bodies = _tokenize(self._tokenizer, [self._head(query) + document for query, document in pairs])
        for index, ((query, _), body) in enumerate(zip(pairs, bodies, strict=True)):
            if len(body) > self.room and len(_tokenize(self._tokenizer, [self._head(query)])[0]) >= self.room:
                self._refuse(index, query)
        return [body[: self.room] for body in bodies]

    def _head(self, query: str) -> str:
        separator = self._prompt.field_separator
        if self._prompt.template == "qwen3":
            instruct = f"<Instruct>: {self._prompt.instruction}{separator}"
            return f"{instruct}<Query>: {query}{separator}<Document>: "
        return f"Query: {query}{separator}Document: "

    def _document_first(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        # The parts are tokenised apart, each text once, so that all pairs of a document share its tokens to the last.
        before, after = self._around()
        documents = self._each_once([document for _, document in pairs], before)
        queries = self._each_once([query for query, _ in pairs], after)
        opening = len(_tokenize(self._tokenizer, [before])[0])
        bodies = []
        for index, (query, document) in enumerate(pairs):
            room = self.room - len(queries[query])
            if room <= opening:
                self._refuse(index, query)
            bodies.append(documents[document][:room] + queries[query])
        return bodies

    def _around(self) -> tuple[str, str]:
        """What stands before the document and before the query, where the document comes first."""
        separator = self._prompt.field_separator
        if self._prompt.template == "qwen3":
            return f"<Instruct>: {self._prompt.instruction}{separator}<Document>: ", f"{separator}<Query>: "
        return "Document: ", f"{separator}Query: "

    def _each_once(self, texts: Sequence[str], before: str) -> dict[str, list[int]]:
        unique = list(dict.fromkeys(texts))
        return dict(zip(unique, _tokenize(self._tokenizer, [before + text for text in unique]), strict=True))

    def _refuse(self, index: int, query: str) -> NoReturn:
        room = f"the whole length of {self.room} tokens"
        raise InputError(index, f"query {query[:60]!r}... fills {room}; raise model.max_length or cut it")


class TextTokenizer:
    """Turns texts into the token ids to embed: prefix, text, and one last token that carries the embedding.

    Args:
        tokenizer: the model's tokenizer.
        prompt: the prefixes of queries and documents, and the suffix.
        max_length: tokens of one text, suffix included.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._prefix = {"query": prompt.query_prefix, "document": prompt.document_prefix, "plain": ""}
        self._suffix = _tokenize(tokenizer, [prompt.embedding_suffix])[0]
        self._room = max_length - len(self._suffix)
        if self._room < 1:
            raise UsageError(f"model.max_length {max_length} leaves no room beside prompt.embedding_suffix; raise it")

    def __call__(
        self, texts: Sequence[str], kind: TextKind, prefix: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """Token ids of each text.

        Args:
            texts: N texts.
            kind: which configured prefix goes before them.
            prefix: takes the place of the configured one.
            max_length: tokens of one text, suffix included, where that is to be less than the configured length.

        Raises:
            UsageError: ``max_length`` leaves no room beside the suffix.
        """
        room = self._room if max_length is None else min(self._room, max_length - len(self._suffix))
        if room < 1:
            raise UsageError(f"a length of {max_length} leaves no room beside prompt.embedding_suffix; raise it")
        before = self._prefix[kind] if prefix is None else prefix
        return [ids[:room] + self._suffix for ids in _tokenize(self._tokenizer, [before + text for text in texts])]


def yes_no_ids(tokenizer: Any) -> tuple[int, int]:
    """Token ids of ``yes`` and ``no``.

    Raises:
        DataError: the tokenizer has no single token for one of them, so that the model cannot answer in one step.
    """
    ids = _tokenize(tokenizer, ["yes", "no"])
    for word, tokens in zip(("yes", "no"), ids, strict=True):
        if len(tokens) != 1:
            raise DataError(
                f"this tokenizer writes {word!r} as {len(tokens)} tokens; yes/no scoring needs a single one"
            )
        if tokens[0] == tokenizer.unk_token_id:
            raise DataError(f"this tokenizer does not know {word!r}; yes/no scoring needs a token for it")
    return ids[0][0], ids[1][0]


def _tokenize(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        [well_formed(text) for text in texts],
        add_special_tokens=False,
        return_attention_mask=False,
        verbose=False,  # no warning about texts that are longer than the model: they are truncated here
    )["input_ids"]
    return ids


def well_formed(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which JSON may carry and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _qwen3_frame(tokenizer: Any) -> Frame:
    prefix, suffix = _tokenize(tokenizer, [_QWEN3_PREFIX, _QWEN3_SUFFIX])
    return Frame(prefix, suffix)


def _chat_frame(tokenizer: Any, instruction: str) -> Frame:
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise UsageError("prompt.template chat: this tokenizer has no chat template; use an instruct model or qwen3")
    conversation = [
        {"role": "system", "content": f'{instruction} Answer only "yes" or "no".'},
        {"role": "user", "content": _BODY_MARK},
    ]
    try:
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:  # some take no system message
        raise UsageError(f"prompt.template chat: this chat template refuses ({first_line(error)}); use qwen3") from None
    before, mark, after = text.partition(_BODY_MARK)
    if not mark:
        raise UsageError("prompt.template chat: this chat template drops the user's message; use qwen3")
    prefix, suffix = _tokenize(tokenizer, [before, after])
    return Frame(prefix, suffix)
