"""Units wait by system, and workers keep their model while its work lasts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.engine import unit

from unimoe.cluster.schedule import Schedule, Unit


def names(units: list[Unit]) -> list[str]:
    return [one.name for one in units]


def test_units_of_a_system_keep_their_order_and_returned_ones_come_first() -> None:
    schedule = Schedule()
    for name in "abc":
        schedule.add(unit(name))
    first = schedule.take(None, Counter())
    assert first is not None
    assert first.name == "a"
    schedule.add(first, first=True)
    assert len(schedule) == 3
    assert names([taken for _ in range(3) if (taken := schedule.take(None, Counter()))]) == ["a", "b", "c"]
    assert schedule.take(None, Counter()) is None


def test_a_worker_takes_units_of_its_model_although_others_wait_longer() -> None:
    schedule = Schedule()
    for name in "abcdef":
        schedule.add(unit(name, "long"))
    schedule.add(unit("x", "short"))
    taken = [schedule.take("short", Counter()), schedule.take("short", Counter(long=1))]
    assert [one.name for one in taken if one] == ["x", "a"]


def test_a_worker_without_a_model_takes_the_system_with_most_units_for_each_worker() -> None:
    schedule = Schedule()
    for number in range(6):
        schedule.add(unit(f"l{number}", "long"))
    for number in range(4):
        schedule.add(unit(f"s{number}", "short"))
    busy = Counter[str]()
    order = []
    for _ in range(4):
        taken = schedule.take(None, busy)
        assert taken is not None
        busy[taken.system] += 1
        order.append(taken.system)
    assert order == ["long", "short", "long", "short"]  # 6/1 > 4/1, 5/2 < 4/1, 5/2 > 3/2, 4/3 < 3/2


def test_drained_units_are_gone() -> None:
    schedule = Schedule()
    for name in "ab":
        schedule.add(unit(name, name))
    assert sorted(names(schedule.drain())) == ["a", "b"]
    assert len(schedule) == 0
    assert schedule.drain() == []


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 4))
def test_workers_load_no_model_twice_while_its_units_wait(systems: list[str], count: int) -> None:
    """Each worker leaves a system for good: it changes models at most as often as there are systems."""
    schedule, busy = Schedule(), Counter[str]()
    for number, system in enumerate(systems):
        schedule.add(unit(str(number), system))
    held: list[list[str]] = [[] for _ in range(count)]
    taken: list[str] = []
    for turn in range(len(systems)):
        models = held[turn % count]
        found = schedule.take(models[-1] if models else None, busy)
        assert found is not None
        taken.append(found.name)
        if not models or models[-1] != found.system:
            models.append(found.system)
    assert sorted(taken, key=int) == [str(number) for number in range(len(systems))]
    for models in held:
        assert len(models) == len(set(models))
