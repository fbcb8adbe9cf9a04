"""What sections of a config are made of, and the section that all kinds share: the text encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

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
    """Return a check of a setting that turns its ``UsageError`` into one of the config, with the key's path."""

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


def without_authority(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that came with a checkpoint or a result, without what only this user may decide.

    That is whether a model's own code runs, which server gets texts and a key, which other models are loaded, and which
    folder is written to. What is left names models, collections and runs, which are read as data.
    """
    kept = {key: value for key, value in config.items() if key not in ("served", "output_dir")}
    if isinstance(evaluation := kept.get("evaluation"), dict):
        kept["evaluation"] = {key: value for key, value in evaluation.items() if key != "systems"}
    return {key: _untrusting(value) for key, value in kept.items()}


def _untrusting(value: Any) -> Any:
    if isinstance(value, dict):  # an arm may be called so, and is a section
        kept = (key for key, inner in value.items() if key != "trust_remote_code" or isinstance(inner, dict))
        return {key: _untrusting(value[key]) for key in kept}
    return [_untrusting(inner) for inner in value] if isinstance(value, list) else value


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
