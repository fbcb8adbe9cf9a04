"""Texts and pairs as token ids: the yes/no prompt about a pair, and the text to embed.

What is too long is cut as Qwen's code cuts it: the document gives way first, then the query keeps its beginning; the
template around them is always whole. Models that were trained with a token at the beginning of every text (Llama,
Gemma) get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, islice, takewhile
from typing import Any, Literal, Protocol

from unimoe.config import TEMPLATES, Answer, PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.embedder import TextKind
from unimoe.models.token_ids import refuse_tokens_without_rows

YES_NO: tuple[Answer, ...] = ("yes", "no")
"""The answers of a prompt that names none."""


PromptParts = tuple[str, ...]
"""A text in parts, each of which is tokenized apart."""


class Template(Protocol):
    """The text of a yes/no prompt about a pair.

    A prompt is the beginning of a conversation, a body that holds query and document, and the end after which the model
    answers. The parts of the conversation are tokenized apart from the body. A text that is given in parts is tokenized
    part by part, as some models were trained.

    Made from the ``prompt`` section of a config. A class may have ``answers``, those of its models (see
    ``prompt.answers``), and ``after_thought``, the text between thought and answer, where it opens a thought.
    """

    def __init__(self, prompt: PromptConfig) -> None: ...

    def conversation(self, tokenizer: Any) -> tuple[str, str | PromptParts]:
        """Return the text before the body and the text after it.

        Raises:
            UsageError: the tokenizer cannot write the conversation.
        """

    def before_document(self, query: str) -> str | PromptParts:
        """Return the body up to the document, where the query comes first; the last part goes on with the document."""

    def around_document(self) -> tuple[str, str]:
        """Return the text before the document and that between it and the query, where the document comes first."""


def prompt_name(prompt: PromptConfig, max_length: int) -> str:
    """Return name and content hash of a prompt, as results record it."""
    return f"{prompt.template}/{prompt.order}@{hash_json([prompt.settings, max_length])}"


class PairTokenizer:
    """Turns query-document pairs into the token ids of one yes/no prompt each, of ``max_length`` tokens at most.

    ``prefix`` and ``suffix`` are the tokens around a prompt's body, which has ``room`` of them; ``opening`` are those
    of the body before the document, where the document comes first. ``rows`` are the tokens that the model has an
    embedding for, None where that is not known.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int, rows: int | None = None) -> None:
        self._tokenizer, self._prompt, self._max_length, self._rows = tokenizer, prompt, max_length, rows
        self._template = TEMPLATES[prompt.template](prompt)
        self.order: Literal["query_first", "document_first"] = prompt.order
        self.after_thought: str = getattr(self._template, "after_thought", "")
        before, after = self._template.conversation(tokenizer)
        (body,) = self.body_texts("", "")[:1]
        self._follow = Following(tokenizer, before, body)
        if isinstance(after, tuple):
            (self.suffix,) = _of_parts(tokenizer, [after])
        else:
            (self.suffix,) = Following(tokenizer, "a", after)([after])
        first, begun = first_token(tokenizer), self._follow.prefix
        self.prefix = begun if begun[: len(first)] == first else first + begun
        self.room = max_length - len(self.prefix) - len(self.suffix)
        self.opening: list[int] = []
        (fixed,) = self._begun([""])
        if self.order == "document_first":
            opening, between = self._template.around_document()
            (self.opening,) = (fixed,) = self._follow([opening])
            self._follow_document = Following(tokenizer, "a", between)
        if self.room < len(fixed) + 8:  # else prompts would be equal, whatever query and document
            least = max_length - self.room + len(fixed) + 8
            raise UsageError(f"model.max_length {max_length} leaves no room beside the prompt; raise it to {least}")
        self._instructed = cache(self._with_instruction)

    def __call__(self, pairs: Sequence[tuple[str, str]], instruction: str | None = None) -> list[list[int]]:
        """Return the token ids of each pair, at most ``max_length``; an instruction replaces the configured one.

        Raises:
            InputError: a pair holds a token that the model has no embedding for; carries its index.
        """
        if instruction not in (None, self._prompt.instruction):
            return self._instructed(instruction)(pairs)
        found = self._prompts(pairs)
        refuse_tokens_without_rows(found, self._rows, self._tokenizer)
        return found

    def _prompts(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        if self.order == "query_first":
            # Tokenized whole, as in Qwen's code: "<Document>: " and "Paris" apart are other tokens than joined.
            bodies = self._begun(*zip(*pairs, strict=True)) if pairs else []
            return [self.prefix + body[: self.room] + self.suffix for body in bodies]
        # Tokenized apart, each text once, so that all pairs of a document share its tokens to the last.
        before, after = self._template.around_document()
        documents = _each_once(self._follow, [document for _, document in pairs], before)
        queries = _each_once(self._follow_document, [query for query, _ in pairs], after)
        found = []
        for query, document in pairs:
            room = self.room - len(queries[query])
            start = documents[document][:room] if room > len(self.opening) else self.opening
            found.append(self.prefix + (start + queries[query])[: self.room] + self.suffix)
        return found

    def body_texts(self, query: str, document: str) -> list[str]:
        """Return the texts of a prompt's body, which are tokenized apart where the document comes first."""
        if self.order == "query_first":
            return ["".join(self._template.before_document(query)) + document]
        before, after = self._template.around_document()
        return [before + document, after + query]

    def too_long(self, queries: Iterable[str], instruction: str | None = None) -> list[bool]:
        """Return whether each query leaves no room for a document, so that the model judges without having seen one."""
        if instruction not in (None, self._prompt.instruction):
            return self._instructed(instruction).too_long(queries)
        if self.order == "query_first":
            begun = self._begun(list(queries))
        else:
            between = self._template.around_document()[1]
            begun = self._follow_document([between + query for query in queries])
        room = self.room - len(self.opening)
        return [len(ids) >= room for ids in begun]

    def _begun(self, queries: Sequence[str], documents: Sequence[str] | None = None) -> list[list[int]]:
        """Return the token ids of bodies that begin with queries, with their documents or up to these."""
        ends = documents or [""] * len(queries)
        begun = [self._template.before_document(query) for query in queries]
        parted = [
            (*text[:-1], text[-1] + end) for text, end in zip(begun, ends, strict=True) if isinstance(text, tuple)
        ]
        if parted:
            return _of_parts(self._tokenizer, parted)
        return self._follow(["".join(text) + end for text, end in zip(begun, ends, strict=True)])

    def _with_instruction(self, instruction: str) -> PairTokenizer:
        prompt = self._prompt.model_copy(update={"instruction": instruction})
        return PairTokenizer(self._tokenizer, prompt, self._max_length, self._rows)


def _each_once(follow: Following, texts: Sequence[str], before: str) -> dict[str, list[int]]:
    unique = list(dict.fromkeys(texts))
    return dict(zip(unique, follow([before + text for text in unique]), strict=True))


def _of_parts(tokenizer: Any, texts: Sequence[PromptParts]) -> list[list[int]]:
    """Return the token ids of texts in parts: those of each part, as if it was alone."""
    parts = iter(tokenize(tokenizer, list(chain.from_iterable(texts))))
    return [list(chain.from_iterable(islice(parts, len(text)))) for text in texts]


class Following:
    """Tokenizes texts that follow another, and that begin alike.

    SentencePiece marks the beginning of a text as it marks a space, so that a part tokenized apart has a mark that the
    whole has not. With such a tokenizer the text before is tokenized with each text, and its tokens are taken off.

    Attributes:
        prefix: tokens of the text before, without those that also hold some of what follows.
    """

    def __init__(self, tokenizer: Any, before: str, beginning: str) -> None:
        self._tokenizer = tokenizer
        first = tokenizer.convert_ids_to_tokens(tokenize(tokenizer, ["a"])[0][:1])
        self._before = before if first and str(first[0]).startswith("\u2581") else ""
        (self.prefix,) = tokenize(tokenizer, [before])
        if self._before:
            (whole,) = tokenize(tokenizer, [before + beginning])
            pairs = zip(self.prefix, whole, strict=False)
            self.prefix = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        found = tokenize(self._tokenizer, [self._before + text for text in texts])
        return [ids[len(self.prefix) :] for ids in found] if self._before else found


class TextTokenizer:
    """Turns texts into the token ids to embed: prefix, text, and the suffix; its last token carries the embedding.

    ``rows`` are as in ``PairTokenizer``.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig, max_length: int, rows: int | None = None) -> None:
        self._tokenizer, self._first, self.max_length = tokenizer, first_token(tokenizer), max_length
        self._rows = rows
        self._prefix = {"query": prompt.query_prefix, "document": prompt.document_prefix, "plain": ""}
        self._suffix = tokenize(tokenizer, [prompt.embedding_suffix])[0]
        self._room = max_length - len(self._first) - len(self._suffix)
        if self._room < 1:
            raise UsageError(f"model.max_length {max_length} leaves no room beside prompt.embedding_suffix; raise it")

    def __call__(
        self, texts: Sequence[str], kind: TextKind, prefix: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """Return the token ids of each text; arguments and errors as in ``Embedder``."""
        room = self._room if max_length is None else min(self._room, max_length - len(self._first) - len(self._suffix))
        if room < 1:
            raise UsageError(f"a length of {max_length} leaves no room beside prompt.embedding_suffix; raise it")
        before = self._prefix[kind] if prefix is None else prefix
        bodies = tokenize(self._tokenizer, [before + text for text in texts])
        found = [self._first + ids[:room] + self._suffix for ids in bodies]
        refuse_tokens_without_rows(found, self._rows, self._tokenizer)
        return found


def own_answers(prompt: PromptConfig) -> Sequence[Answer]:
    """Return the answers of a prompt: those that are set, else the template's own, else ``yes`` and ``no``."""
    # A template may name the answers of the models that it is written for.
    of_template: Sequence[Answer] = getattr(TEMPLATES[prompt.template], "answers", YES_NO)
    return prompt.answers or of_template


def answer_ids(tokenizer: Any, answers: Sequence[Answer] = YES_NO) -> list[int]:
    """Return the token ids of what says relevant and, unless it is scored alone, of what says not relevant.

    Raises:
        DataError: an answer is not one token, or both are the same.
    """
    found: list[int] = []
    for answer in answers:
        if isinstance(answer, int):
            if answer >= len(tokenizer):
                raise DataError(f"this tokenizer has no token {answer}; its last one is {len(tokenizer) - 1}")
            found.append(answer)
            continue
        (tokens,) = tokenize(tokenizer, [answer])
        if len(tokens) != 1:
            count = len(tokens)
            raise DataError(f"this tokenizer writes {answer!r} as {count} tokens; an answer of prompt.answers has one")
        if tokens[0] == tokenizer.unk_token_id:
            raise DataError(f"this tokenizer does not know {answer!r}; give another word in prompt.answers")
        found += tokens
    if len(found) > len(set(found)):
        raise DataError(f"prompt.answers: {' and '.join(map(repr, answers))} are one token; give two, or one alone")
    return found


def first_token(tokenizer: Any) -> list[int]:
    """Return the token that the tokenizer puts before every text, such as Llama's ``<|begin_of_text|>``; else none."""
    ids: list[int] = tokenizer("a", verbose=False)["input_ids"]
    return ids[:1] if ids[:1] == [tokenizer.bos_token_id] else []


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
