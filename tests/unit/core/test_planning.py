"""Jobs of a plan: a sample is timed, after a warm-up, until the time is up."""

from __future__ import annotations

import pytest

from unimoe.core.planning import Job, spread


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("unimoe.core.planning.time.perf_counter", lambda: now[0])
    return now


def test_a_unit_that_takes_all_the_time_is_the_sample(clock: list[float]) -> None:
    done: list[int] = []

    def do(unit: int) -> None:
        done.append(unit)
        clock[0] += 5.0

    assert Job("step", 50, range(50), do, weigh=lambda _: 1.0).seconds_each() == pytest.approx(5.0)
    assert done == [0]


def test_the_first_unit_warms_up_and_the_others_count_by_their_size(clock: list[float]) -> None:
    def do(unit: list[float]) -> None:
        clock[0] += sum(unit)

    job = Job("sum", 100, [[1.9], [0.1, 0.3], [0.2, 0.2]], do)
    assert job.seconds_each() == pytest.approx(0.2)
    assert Job("sum", 100, [[9.0]], do).seconds_each() == pytest.approx(9.0), "the only one counts"


def test_the_sample_ends_when_the_time_is_up(clock: list[float]) -> None:
    done: list[int] = []

    def do(unit: int) -> None:
        done.append(unit)
        clock[0] += 0.75

    assert Job("step", 50, range(50), do, weigh=lambda _: 1.0).seconds_each() == pytest.approx(0.75)
    assert done == [0, 1, 2, 3]


def test_what_is_kept_of_a_unit_makes_it_quicker_the_second_time(clock: list[float]) -> None:
    kept: set[str] = set()

    def do(unit: str) -> None:
        clock[0] += (0.1 if unit in kept else 1.1) * len(unit)
        kept.add(unit)

    assert Job("read", 9, ["warm", "a", "bc", "def"], do).seconds_first_and_again() == pytest.approx((1.1, 0.1))


def test_a_sample_is_spread_over_the_whole() -> None:
    assert spread(range(100), 4) == range(0, 100, 25)
    assert spread([1, 2], 4) == [1, 2]
