"""The parts of RayActors that need no Ray."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from unimoe.cluster.actors import _own_sigterm


@pytest.fixture
def heard() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def as_ray_does() -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))


def test_a_signal_while_ray_starts_is_heard(heard: list[int]) -> None:
    with _own_sigterm():
        as_ray_does()
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_signal_after_it_too(heard: list[int]) -> None:
    with _own_sigterm():
        as_ray_does()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_another_exit_stays_one(heard: list[int]) -> None:
    with pytest.raises(SystemExit, match="3"), _own_sigterm():
        sys.exit(3)
    assert heard == []
