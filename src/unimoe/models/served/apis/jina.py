"""Jina's ``/v1/rerank``, at ``https://api.jina.ai/v1``; infinity and others speak it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, register_api


def rerank(settings: ServedConfig, query: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return a request for the scores of all of a query's documents."""
    return {
        "model": settings.model,
        "query": query,
        "documents": list(documents),
        "top_n": len(documents),
        "return_documents": False,
    }


register_api("jina", API(rerank=Endpoint("/rerank", rerank, Rows("results", "relevance_score"))))
