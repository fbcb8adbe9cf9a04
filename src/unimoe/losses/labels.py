"""What labels a loss can learn from."""

from __future__ import annotations

from collections.abc import Iterable

from unimoe.config.losses import LossName
from unimoe.errors import DataError


def are_binary(labels: Iterable[float]) -> bool:
    """Whether there is nothing but 0 and 1."""
    return set(labels) <= {0.0, 1.0}


def refuse_binary(name: LossName, labels: Iterable[float]) -> None:
    """Raise a data error where a loss needs graded labels, and there are only 0 and 1."""
    if name == "marginmse" and are_binary(labels):
        raise DataError(
            "loss marginmse needs graded labels, such as a teacher's scores, and these are 0 and 1; "
            "take yes_no, softmax, plistmle or lambdaloss"
        )
