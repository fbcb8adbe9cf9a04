"""Refuse labels that a loss cannot learn from."""

from __future__ import annotations

from collections.abc import Iterable

from unimoe.config.training import LOSSES
from unimoe.core.errors import DataError


def are_binary(labels: Iterable[float]) -> bool:
    """Return whether all labels are 0 or 1."""
    return set(labels) <= {0.0, 1.0}


def refuse_binary(name: str, labels: Iterable[float]) -> None:
    """Raise a data error where a loss needs graded labels and there are only 0 and 1."""
    if LOSSES[name].labels == "graded" and are_binary(labels):
        raise DataError(
            f"loss {name} needs graded labels, such as a teacher's scores, and these are 0 and 1; "
            "take yes_no, softmax, plistmle or lambdaloss"
        )
