"""The order of a list that a function sorts window by window, in place of a model that is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unimoe.config.listwise import ListReading
from unimoe.models import lists


def in_windows(
    count: int, sort: Callable[[list[int]], Sequence[int]], reading: ListReading, *, settles: bool
) -> list[int]:
    """What ``lists.in_windows`` makes of the windows that ``sort`` returns."""

    def reorder(window: list[int]) -> Any:
        yield
        return [*sort(window)]

    steps = lists.in_windows(count, reorder, reading, settles=settles)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return list(end.value)
