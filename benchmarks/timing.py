"""Timing ours and a peer in turn, for the other scripts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

Part = TypeVar("Part")
Found = TypeVar("Found")


class Turns(NamedTuple):
    """The median seconds of each, and the median of the peer's time over ours in the same turn."""

    own: float
    peer: float
    ratio: float


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(name: str, ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> Turns:
    """Time both in turn, after one run of each, and print medians and spread."""
    ours()
    peer()
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    own, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} turns"
    print(f"{name}: {own:.3g} s, peer {other:.3g} s; peer over ours {spread}", flush=True)
    return Turns(own, other, statistics.median(ratios))


def on_each(
    ours: Callable[[Part], Found],
    peer: Callable[[Part], Found],
    parts: Iterable[Part],
    look: Callable[[Found, Found], object] = lambda *_: None,
) -> list[tuple[float, float]]:
    """Return the seconds of both on each part; ``look`` sees what they found. Neither always finds the caches warm."""
    taken = []
    for number, part in enumerate(parts):
        start = time.perf_counter()
        first = (ours if number % 2 else peer)(part)
        middle = time.perf_counter()
        second = (peer if number % 2 else ours)(part)
        halves = middle - start, time.perf_counter() - middle
        look(*((first, second) if number % 2 else (second, first)))
        taken.append(halves if number % 2 else halves[::-1])
    return taken
