"""OpenAI's ``/v1/embeddings``, at ``https://api.openai.com/v1``; vLLM, TEI and infinity speak it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unimoe.config.served import ServedConfig
from unimoe.models.served.api import API, Endpoint, Rows, not_blank, register_api


def embed(settings: ServedConfig, texts: Sequence[str]) -> dict[str, Any]:
    """Return a request for vectors."""
    return {"model": settings.model, "input": not_blank(texts), "encoding_format": "float"}


_EMBED = Endpoint("/embeddings", embed, Rows("data", "embedding"), largest_batch=2048, refuses_long=True)

register_api("openai", API(embed=_EMBED))
