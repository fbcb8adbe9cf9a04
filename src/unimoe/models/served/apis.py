"""The APIs of servers.

vllm          prompts as token ids to ``/generative_scoring``, so that the model reads our prompt to the letter
vllm-score    texts to ``/score``; this and vllm-rerank ask for raw scores in the server's own template: under an
              activation they would round to 1 where they still differ
vllm-rerank   texts to ``/rerank``
tei           Hugging Face's text-embeddings-inference: texts to ``/rerank``, 32 a request, for raw scores
tei-embed     its ``/embed``
cohere        ``/v2/rerank`` at ``https://api.cohere.com/v2``, which bills a search for each 100 documents of a request
jina          ``/v1/rerank`` at ``https://api.jina.ai/v1``; infinity and others speak it too
openai        ``/v1/embeddings`` at ``https://api.openai.com/v1``; vLLM, TEI and infinity speak it too
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, not_blank, register_api

_MODEL_LIMIT = -1  # vLLM's word for truncation at the model's own length
_TEI_BATCH = 32
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
    return {"truncate_prompt_tokens": settings.max_length or _MODEL_LIMIT, "use_activation": False}


def _tei_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return {"query": query, "texts": list(documents), "raw_scores": True, "return_text": False, **_TEI_CUTS}


def _tei_embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    return {"inputs": not_blank(texts), "normalize": True, **_TEI_CUTS}


def _cohere_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    cut = {} if settings.max_length is None else {"max_tokens_per_doc": settings.max_length}
    return _ranking(settings, query, documents) | cut


def _jina_rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    return _ranking(settings, query, documents) | {"return_documents": False}


def _openai_embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    return {"model": settings.model, "input": not_blank(texts), "encoding_format": "float"}


def _ranking(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return what most APIs want, to have the scores of all documents."""
    return {"model": settings.model, "query": query, "documents": list(documents), "top_n": len(documents)}


_SCORES, _RANKS = Rows("data", "score"), Rows("results", "relevance_score")
_GENERATIVE = Endpoint("/generative_scoring", vllm_prompts, _SCORES, from_root=True, probability=True)
_EMBEDDINGS = Endpoint("/embeddings", _openai_embed, Rows("data", "embedding"), largest_batch=2048, refuses_long=True)

register_api("vllm", API(prompts=_GENERATIVE))
register_api("vllm-score", API(rerank=Endpoint("/score", _vllm_score, _SCORES)))
register_api("vllm-rerank", API(rerank=Endpoint("/rerank", _vllm_rerank, _RANKS)))
register_api("tei", API(rerank=Endpoint("/rerank", _tei_rerank, Rows(None, "score"), largest_batch=_TEI_BATCH)))
register_api("tei-embed", API(embed=Endpoint("/embed", _tei_embed, Rows(None, None), largest_batch=_TEI_BATCH)))
register_api("cohere", API(rerank=Endpoint("/rerank", _cohere_rerank, _RANKS, batch=100, largest_batch=1000)))
register_api("jina", API(rerank=Endpoint("/rerank", _jina_rerank, _RANKS)))
register_api("openai", API(embed=_EMBEDDINGS))
