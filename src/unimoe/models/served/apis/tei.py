"""Hugging Face's text-embeddings-inference: ``/rerank`` and ``/embed``, 32 texts of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, not_blank, register_api

_LARGEST_BATCH = 32


def rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return a request for the raw scores of a query's documents; long ones are cut at their end."""
    return {
        "query": query,
        "texts": list(documents),
        "raw_scores": True,
        "return_text": False,
        "truncate": True,
        "truncation_direction": "Right",
    }


def embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    """Return a request for vectors of unit length."""
    return {"inputs": not_blank(texts), "normalize": True, "truncate": True, "truncation_direction": "Right"}


register_api("tei", API(rerank=Endpoint("/rerank", rerank, Rows(None, "score"), largest_batch=_LARGEST_BATCH)))
register_api("tei-embed", API(embed=Endpoint("/embed", embed, Rows(None, None), largest_batch=_LARGEST_BATCH)))
