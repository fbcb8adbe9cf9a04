"""Cohere's ``/v2/rerank``, at ``https://api.cohere.com/v2``; it bills a search for each 100 documents of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, register_api


def rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return a request for the scores of all of a query's documents."""
    cut = {} if settings.max_length is None else {"max_tokens_per_doc": settings.max_length}
    return {"model": settings.model, "query": query, "documents": list(documents), "top_n": len(documents), **cut}


register_api("cohere", API(rerank=Endpoint("/rerank", rerank, Rows("results", "relevance_score"), 100, 1000)))
