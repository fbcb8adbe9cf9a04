"""What servers speak: the request of each API, and where its answers have the values.

vllm          prompts as token ids to ``/generative_scoring``, so that the model reads our prompt to the letter
vllm-score    texts to ``/score``; this and vllm-rerank ask for raw scores in the server's own template: under an
              activation they would round to 1 where they still differ
vllm-rerank   texts to ``/rerank``
tei           Hugging Face's text-embeddings-inference: texts to ``/rerank``, 32 a request, for raw scores
tei-embed     its ``/embed``
cohere        ``/v2/rerank`` at ``https://api.cohere.com/v2``, which bills a search for each 100 documents of a request
jina          ``/v1/rerank`` at ``https://api.jina.ai/v1``; infinity and others speak it too
openai        ``/v1/embeddings`` at ``https://api.openai.com/v1``; vLLM, TEI and infinity speak it too
chat          ``/v1/chat/completions`` there, which vLLM and most others speak too: it grades pairs for
              ``unimoe label``, orders lists (``listwise:``) and thinks (``reasoning:``)

An API of your own is registered under a name, which ``served.api`` may then be::

    from unimoe.models.served.api import API, Endpoint, Rows, register_api

    register_api("mine", API(rerank=Endpoint("/rank", body, Rows("hits", "score"))))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import InputError, UsageError

register_api = APIS.add

TOP, BOTTOM = 37.0, -746.0
"""The margins of P(yes) 1 and 0: beyond those of the numbers next to them, 36.7 and -744.4, which are exact."""


@dataclass(frozen=True)
class Rows:
    """Where an answer has one row for each item of a request.

    Attributes:
        key: of the list of rows; None where the answer is the list.
        value: key of a row's score or vector, next to its ``index``; None where a row is the value, in the order asked.
    """

    key: str | None
    value: str | None

    def values(self, answer: Any, count: int) -> list[Any]:
        """Return the value of each of ``count`` items, in the order asked.

        Raises:
            InputError: the answer has not exactly one row for each; carries the item's index.
        """
        rows = answer if self.key is None else _field(answer, self.key)
        if not isinstance(rows, list):
            raise InputError(0, f"answered {_shown(answer)} in place of a list")
        if len(rows) != count:
            raise InputError(0, f"answered {len(rows)} rows for the {count} of a request")
        if self.value is None:
            return rows
        found: dict[int, Any] = {}
        for row in rows:
            index = _field(row, "index")
            if type(index) is not int or not 0 <= index < count:
                raise InputError(0, f"answered a row with index {_shown(index)} of {count}")
            if index in found:
                raise InputError(index, "answered two rows for it")
            found[index] = _field(row, self.value)
        return [found[index] for index in range(count)]


@dataclass(frozen=True)
class Endpoint:
    """One address of a server.

    Attributes:
        path: after the server's address; with ``from_root`` the address without a version such as ``/v1``.
        body: makes a request from the settings and what is asked about.
        rows: where the answer has its rows.
        batch: items of one request, where the settings do not say.
        largest_batch: items of one request that the API takes; None for any number.
        from_root: whether the path begins at the server's root.
        probability: whether the score is a probability, of which the logit is taken.
        raw: whether the score is the logit of a model, before any activation.
        refuses_long: whether a text that is too long is refused with all its batch, so that ``served.max_length`` cuts
            it here.
    """

    path: str
    body: Callable[..., dict[str, Any]]
    rows: Rows
    batch: int = 32
    largest_batch: int | None = None
    from_root: bool = False
    probability: bool = False
    raw: bool = False
    refuses_long: bool = False

    def items(self, settings: ServedConfig) -> int:
        """Return how many items a request has; raise ``UsageError`` where the API does not take so many."""
        items = settings.batch or self.batch
        if self.largest_batch is not None and items > self.largest_batch:
            raise UsageError(f"served.batch {items}: {settings.api} takes {self.largest_batch} at most; lower it")
        return items


@dataclass(frozen=True)
class API:
    """The endpoints of a server, of which it has one at least.

    Attributes:
        rerank: ``body(settings, query, documents)``, scores of texts.
        prompts: ``body(settings, prompts, yes_no)``, scores of prompts that are lists of token ids.
        embed: ``body(settings, texts)``, vectors of texts.
        chat: ``body(settings, messages, tokens)``, the answer to a conversation, of so many tokens at most.
    """

    rerank: Endpoint | None = None
    prompts: Endpoint | None = None
    embed: Endpoint | None = None
    chat: Endpoint | None = None


def number(value: Any, index: int) -> float:
    """Return a score; raise an ``InputError`` that carries the index where it is no finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(index, f"answered {_shown(value)} in place of a finite number")
    return found


def margin(value: Any, index: int) -> float:
    """Return the logit of a probability; errors are those of ``number``."""
    probability = number(value, index)
    if not 0 <= probability <= 1:
        raise InputError(index, f"answered {probability:g} as a probability")
    if probability in {0, 1}:
        return TOP if probability else BOTTOM
    return math.log(probability) - math.log1p(-probability)


def vector(value: Any, index: int) -> list[float]:
    """Return a vector; errors are those of ``number``."""
    if not isinstance(value, list) or not value:
        raise InputError(index, f"answered {_shown(value)} as a vector")
    return [number(entry, index) for entry in value]


def reply(value: Any, index: int) -> str:
    """Return the text of a chat model's message, empty where it has none; raise an ``InputError`` about another."""
    if not isinstance(value, dict):
        raise InputError(index, f"answered {_shown(value)} in place of a message")
    text = value.get("content")
    return text if isinstance(text, str) else ""


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else repr(value)


_TEI_CUTS = {"truncate": True, "truncation_direction": "Right"}


def vllm_prompts(settings: ServedConfig, prompts: Sequence[list[int]], yes_no: tuple[int, int]) -> dict[str, Any]:
    """Return a request for P(yes) of prompts; the beginning that they share is sent once."""
    shared = 0
    for tokens in zip(*(prompt[:-1] for prompt in prompts), strict=False):  # the server wants a token of each item
        if len(set(tokens)) > 1:
            break
        shared += 1
    return {
        "model": settings.model,
        "query": prompts[0][:shared],
        "items": [prompt[shared:] for prompt in prompts],
        "label_token_ids": list(yes_no),
        "apply_softmax": True,
        "item_first": False,
        "add_special_tokens": False,
    }


def _vllm_score(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return {"model": settings.model, "text_1": query, "text_2": list(documents), **_vllm_options(settings)}


def _vllm_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return _ranking(settings, query, documents) | _vllm_options(settings)


def _vllm_options(settings: ServedConfig) -> dict[str, Any]:
    # -1 is vLLM's word for truncation at the model's own length.
    return {"truncate_prompt_tokens": settings.max_length or -1, "use_activation": False}


def _tei_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return {"query": query, "texts": list(documents), "raw_scores": True, "return_text": False, **_TEI_CUTS}


def _tei_embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    return {"inputs": _not_blank(texts), "normalize": True, **_TEI_CUTS}


def _cohere_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    cut = {} if settings.max_length is None else {"max_tokens_per_doc": settings.max_length}
    return _ranking(settings, query, documents) | cut


def _jina_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return _ranking(settings, query, documents) | {"return_documents": False}


def _openai_embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    return {"model": settings.model, "input": _not_blank(texts), "encoding_format": "float"}


def _chat(settings: ServedConfig, messages: Sequence[dict[str, str]], tokens: int = 16) -> dict[str, Any]:
    return {"model": settings.model, "messages": list(messages), "temperature": 0, "max_tokens": tokens}


def _ranking(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return what most APIs want, to have the scores of all documents."""
    return {"model": settings.model, "query": query, "documents": list(documents), "top_n": len(documents)}


def _not_blank(texts: Sequence[str]) -> list[str]:
    # Servers refuse a blank text, and its whole batch: https://github.com/openai/openai-python/issues/576
    return [text if text.strip() else "." for text in texts]


_SCORES, _RANKS = Rows("data", "score"), Rows("results", "relevance_score")
_CHAT = Endpoint("/chat/completions", _chat, Rows("choices", "message"), batch=1, largest_batch=1)
_GENERATIVE = Endpoint("/generative_scoring", vllm_prompts, _SCORES, from_root=True, probability=True)
_EMBEDDINGS = Endpoint("/embeddings", _openai_embed, Rows("data", "embedding"), largest_batch=2048, refuses_long=True)

register_api("vllm", API(prompts=_GENERATIVE))
register_api("vllm-score", API(rerank=Endpoint("/score", _vllm_score, _SCORES, raw=True)))
register_api("vllm-rerank", API(rerank=Endpoint("/rerank", _vllm_rerank, _RANKS, raw=True)))
register_api("tei", API(rerank=Endpoint("/rerank", _tei_rerank, Rows(None, "score"), largest_batch=32, raw=True)))
register_api("tei-embed", API(embed=Endpoint("/embed", _tei_embed, Rows(None, None), largest_batch=32)))
register_api("cohere", API(rerank=Endpoint("/rerank", _cohere_rerank, _RANKS, batch=100, largest_batch=1000)))
register_api("jina", API(rerank=Endpoint("/rerank", _jina_rerank, _RANKS)))
register_api("openai", API(embed=_EMBEDDINGS))
register_api("chat", API(chat=_CHAT))
