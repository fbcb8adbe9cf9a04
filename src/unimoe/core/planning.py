"""What some work will take: a sample of it is done for two seconds, and multiplied."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

SECONDS = 2.0
"""For how long a sample is timed, after its warm-up."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """Some work, such as all texts to embed.

    Attributes:
        name: what it does.
        size: of the whole, in the measure of ``weigh``: texts, pairs, steps.
        units: a sample of its parts, in the order in which they are done.
        do: does one of them.
        weigh: returns the size of one of them.
    """

    name: str
    size: float
    units: Sequence[T]
    do: Callable[[T], object]
    weigh: Callable[[T], float] = len  # type: ignore[assignment]

    def seconds_each(self, limit: float = SECONDS) -> float:
        """Return the seconds that one text, pair or step takes, by as many units as the time allows.

        The first one warms up, and counts only where it is alone, or takes all the time.
        """
        return self._sampled(limit)[0]

    def seconds_first_and_again(self, limit: float = SECONDS) -> tuple[float, float]:
        """Return the seconds of one item when it is met, and once more: what the model kept of it makes it quicker."""
        first, units = self._sampled(limit)
        return first, min(first, self._timed(units, limit)[0])

    def _sampled(self, limit: float) -> tuple[float, Sequence[T]]:
        """Return the seconds of an item, and the units that were timed."""
        first, *others = self.units
        seconds, _ = self._timed([first], limit)
        if not others or seconds * self.weigh(first) > limit:
            return seconds, [first]
        seconds, done = self._timed(others, limit)
        return seconds, others[:done]

    def _timed(self, units: Sequence[T], limit: float) -> tuple[float, int]:
        """Return the seconds of an item, and the number of units done, at least one."""
        size, start = 0.0, time.perf_counter()
        for number, unit in enumerate(units, start=1):  # noqa: B007 - the last one counts
            self.do(unit)
            size += self.weigh(unit)
            if time.perf_counter() - start > limit:
                break
        return (time.perf_counter() - start) / size, number


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """Return about ``count`` items, from the whole of a list."""
    return items[:: max(1, len(items) // count)]
