"""Texts and pairs as token ids: the yes/no prompt about a pair, and the text to embed.

Only documents are truncated; a query that leaves no room for its document is refused by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from unimoe.config import PromptConfig
from unimoe.config.experiment import TEMPLATES
from unimoe.errors import DataError, InputError, UsageError
from unimoe.io import hash_json
from unimoe.models.embedder import TextKind


def prompt_name(prompt: PromptConfig, max_length: int) -> str:
    """Return name and content hash of a prompt, as results record it."""
    return f"{prompt.template}/{prompt.order}@{hash_json([prompt.model_dump(), max_length])}"


class PairTokenizer:
    """Turns query-document pairs into the token ids of one yes/no prompt each.

    Args:
        tokenizer: the model's tokenizer.
        prompt: template, order, instruction and separator.
        max_length: tokens of one prompt, template included.

    Attributes:
        order: which side of a pair comes first.
        prefix: tokens before the body.
        suffix: tokens after it.
        room: tokens of the body.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._template = TEMPLATES[prompt.template](prompt)
        self.order: Literal["query_first", "document_first"] = prompt.order
        self.prefix, self.suffix = tokenize(tokenizer, list(self._template.conversation(tokenizer)))
        self.room = max_length - len(self.prefix) - len(self.suffix)
        if self.room < 8:
            raise UsageError(f"model.max_length {max_length} leaves no room beside the prompt; raise it")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return the token ids of each ``(query, document)`` pair, at most ``max_length`` long.

        Raises:
            InputError: a query alone fills the length; the message quotes its beginning.
        """
        bodies = self._document_first(pairs) if self.order == "document_first" else self._query_first(pairs)
        return [self.prefix + body + self.suffix for body in bodies]

    def body_texts(self, query: str, document: str) -> list[str]:
        """Return the texts of a prompt's body, which are tokenized apart; the document's is cut."""
        if self.order == "query_first":
            return [self._template.before_document(query) + document]
        before, after = self._template.around_document()
        return [before + document, after + query]

    def _query_first(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        # The body is tokenized whole, as in Qwen's code: "<Document>: " and "Paris" apart are other tokens than joined.
        before = self._template.before_document
        bodies = tokenize(self._tokenizer, [before(query) + document for query, document in pairs])
        for index, ((query, _), body) in enumerate(zip(pairs, bodies, strict=True)):
            if len(body) > self.room and len(tokenize(self._tokenizer, [before(query)])[0]) >= self.room:
                self._refuse(index, query)
        return [body[: self.room] for body in bodies]

    def _document_first(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        # The parts are tokenized apart, each text once, so that all pairs of a document share its tokens to the last.
        before, after = self._template.around_document()
        documents = self._each_once([document for _, document in pairs], before)
        queries = self._each_once([query for query, _ in pairs], after)
        opening = len(tokenize(self._tokenizer, [before])[0])
        bodies = []
        for index, (query, document) in enumerate(pairs):
            room = self.room - len(queries[query])
            if room <= opening:
                self._refuse(index, query)
            bodies.append(documents[document][:room] + queries[query])
        return bodies

    def _each_once(self, texts: Sequence[str], before: str) -> dict[str, list[int]]:
        unique = list(dict.fromkeys(texts))
        return dict(zip(unique, tokenize(self._tokenizer, [before + text for text in unique]), strict=True))

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
        self._suffix = tokenize(tokenizer, [prompt.embedding_suffix])[0]
        self._room = max_length - len(self._suffix)
        if self._room < 1:
            raise UsageError(f"model.max_length {max_length} leaves no room beside prompt.embedding_suffix; raise it")

    def __call__(
        self, texts: Sequence[str], kind: TextKind, prefix: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """Return the token ids of each text.

        Args:
            texts: N texts.
            kind: which configured prefix goes before them.
            prefix: replaces the configured one.
            max_length: tokens of one text, suffix included, where it is less than the configured length.

        Raises:
            UsageError: ``max_length`` leaves no room beside the suffix.
        """
        room = self._room if max_length is None else min(self._room, max_length - len(self._suffix))
        if room < 1:
            raise UsageError(f"a length of {max_length} leaves no room beside prompt.embedding_suffix; raise it")
        before = self._prefix[kind] if prefix is None else prefix
        return [ids[:room] + self._suffix for ids in tokenize(self._tokenizer, [before + text for text in texts])]


def yes_no_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the token ids of ``yes`` and ``no``.

    Raises:
        DataError: the tokenizer has no single token for one of them, so that the model cannot answer in one step.
    """
    ids = tokenize(tokenizer, ["yes", "no"])
    for word, tokens in zip(("yes", "no"), ids, strict=True):
        if len(tokens) != 1:
            raise DataError(
                f"this tokenizer writes {word!r} as {len(tokens)} tokens; yes/no scoring needs a single one"
            )
        if tokens[0] == tokenizer.unk_token_id:
            raise DataError(f"this tokenizer does not know {word!r}; yes/no scoring needs a token for it")
    return ids[0][0], ids[1][0]


def tokenize(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Return the token ids of texts, without special tokens."""
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
    """Return the text with U+FFFD for halves of surrogate pairs, which JSON may carry and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
