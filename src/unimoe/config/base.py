"""What sections of a config are made of, and the section that all kinds share: the text encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from unimoe.core.errors import UsageError
from unimoe.core.limits import LONGEST_NAME

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Width = Annotated[int, Field(ge=1, le=2**16)]
"""Outputs of a layer, or the rank of a product."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Precision = Literal["float32", "int8", "binary"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=LONGEST_NAME)]

BUNDLED_ENCODER = "bundled:all-minilm-l6-v2"


def checked(check: Callable[[str], str]) -> AfterValidator:
    """Return a check of a setting whose ``UsageError`` becomes one of the config, with the key's path."""

    def or_value_error(text: str) -> str:
        try:
            return check(text)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(or_value_error)


def _metric_name(text: str) -> str:
    from unimoe.metrics import canonical_metric  # a config without metrics loads no measure

    return canonical_metric(text)


MetricName = Annotated[str, checked(_metric_name)]
"""A metric in any spelling, held by the name that results hold it under."""


class Section(BaseModel):
    """A part of the config: unknown keys are refused, types are taken strictly, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EncoderConfig(Section):
    """A text encoder.

    Attributes:
        base: a hub id, a folder (of sentence-transformers or of transformers), ``bundled:all-minilm-l6-v2``, or for
            ``unimoe retrieve`` a server's address, ``https://HOST/v1``.
        revision: the hub revision; null for the newest.
        dtype: ``auto`` probes the device for the faster of float32 and bfloat16, or float16 on GPUs without bfloat16.
        max_length: tokens of one text, prefix included; null for the model's own limit.
        pooling: how token states become one vector; ``auto``: the model's own setting, else sentence-transformers'.
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
