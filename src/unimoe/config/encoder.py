"""The config of a text encoder, for dense retrieval, for the fusion of a first stage, and for studies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from unimoe.config.base import Dtype, Section

BUNDLED_ENCODER = "bundled:all-minilm-l6-v2"


class EncoderConfig(Section):
    """A text encoder.

    Attributes:
        base: a hub id, a folder (of sentence-transformers or of transformers), ``bundled:all-minilm-l6-v2``, or for
            ``unimoe retrieve`` a server's address, ``https://HOST/v1``.
        revision: the hub revision; null for the newest.
        dtype: ``auto`` probes the device for the faster of float32 and bfloat16, or float16 on GPUs without bfloat16.
        max_length: tokens of one text, prefix included; null for the model's own limit.
        pooling: how token states become one vector; ``auto`` takes the model's own setting, else the mean.
        query_prefix: text before a query, such as e5's ``query: ``; null for the model's own, which is often none.
        document_prefix: text before a document, such as e5's ``passage: ``; null for the model's own.
        trust_remote_code: runs code from the model's repository; leave it off unless you have read that code.
    """

    base: str = BUNDLED_ENCODER
    revision: str | None = None
    dtype: Dtype = "auto"
    max_length: Annotated[int, Field(ge=4)] | None = None
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    query_prefix: str | None = None
    document_prefix: str | None = None
    trust_remote_code: bool = False
