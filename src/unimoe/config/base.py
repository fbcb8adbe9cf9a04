"""What every section of a config is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from unimoe.core.errors import UsageError
from unimoe.core.limits import LONGEST_NAME
from unimoe.core.registry import Registry

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Width = Annotated[int, Field(ge=1, le=2**16)]
"""Outputs of a layer, or the rank of a product."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=LONGEST_NAME)]


def _checked(check: Callable[[str], str]) -> AfterValidator:
    """Return a check of a setting whose ``UsageError`` becomes one of the config, with the key's path."""

    def checked(text: str) -> str:
        try:
            return check(text)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(checked)


def _metric_name(text: str) -> str:
    from unimoe.metrics import canonical_metric  # a config without metrics loads no measure

    return canonical_metric(text)


MetricName = Annotated[str, _checked(_metric_name)]
"""A metric in any spelling, held by the name that results hold it under."""


def registered(registry: Registry[Any]) -> AfterValidator:
    """Return a check that a name is one of a registry; it fills the registry when a config is checked, not before."""
    return _checked(registry.checked)


class Section(BaseModel):
    """A part of the config: unknown keys are refused, types are taken strictly, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
