"""vLLM: prompts as token ids (``/generative_scoring``), or texts (``/score``, ``/rerank``) in the server's template.

Texts get raw scores: under an activation they would round to 1 where they still differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, register_api

_MODEL_LIMIT = -1  # vLLM's word for truncation at the model's own length


def generative(settings: ServedConfig, prompts: Sequence[list[int]], yes_no: tuple[int, int]) -> dict[str, Any]:
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


def score(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return a request for the scores of a query's documents."""
    return {"model": settings.model, "text_1": query, "text_2": list(documents), **_options(settings)}


def rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return a request for the scores of all of a query's documents."""
    return {
        "model": settings.model,
        "query": query,
        "documents": list(documents),
        "top_n": len(documents),
        **_options(settings),
    }


def _options(settings: ServedConfig) -> dict[str, Any]:
    return {"truncate_prompt_tokens": settings.max_length or _MODEL_LIMIT, "use_activation": False}


_PROMPTS = Endpoint("/generative_scoring", generative, Rows("data", "score"), from_root=True, probability=True)

register_api("vllm", API(prompts=_PROMPTS))
register_api("vllm-score", API(rerank=Endpoint("/score", score, Rows("data", "score"))))
register_api("vllm-rerank", API(rerank=Endpoint("/rerank", rerank, Rows("results", "relevance_score"))))
