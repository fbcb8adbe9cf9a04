"""A driver with real workers in threads: what is finished is read, what is damaged is computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine import ThreadPool, calls, recipe

from unimoe.cluster.cluster import Assignment, Cluster
from unimoe.cluster.texts import PairTexts, TextTable
from unimoe.cluster.units import UnitStore

NUMBERS = [*range(12)]


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    calls.made = calls.numbers = 0


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    opened = Cluster(ThreadPool(str(folder), workers), UnitStore(str(folder)))
    try:
        yield opened
    finally:
        opened.close()


def assignment(by: int = 2, what: str = "work") -> Assignment:
    return Assignment(what, f"units/{what}", recipe(by), {"scores": by})


def products(driver: Cluster, numbers: list[int], by: int = 2, **more: Any) -> list[float]:
    parts = [{"number": number, "name": f"number {number}", **more} for number in numbers]
    found = driver.workers(assignment(by)).compute("multiply", parts, lambda part: None)
    return [reply.item() for reply in found]


def counted(driver: Cluster, units: int, items: int) -> tuple[int, int, int]:
    """What the board counts; a unit is counted a moment after its result is there."""
    line, deadline = driver.board.line("work"), time.monotonic() + 20
    while (line.units, line.done) != (units, items) and time.monotonic() < deadline:
        time.sleep(0.01)
    return line.done, line.found, line.units


def in_store(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "units").rglob("*") if path.is_file())


def test_results_are_in_order_and_each_worker_loads_a_model_once(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
    assert calls.made <= 2
    assert calls.numbers == len(in_store(tmp_path)) == len(NUMBERS)


def test_what_is_finished_is_not_computed_again(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        products(driver, NUMBERS[:7])
    with cluster(tmp_path, workers=1) as driver:
        assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
        assert counted(driver, 12, items=12) == (12, 7, 12)
    assert calls.numbers == len(NUMBERS)


@pytest.mark.parametrize("how", ["cut", "flipped", "emptied", "lost"])
def test_a_damaged_unit_is_computed_again_and_never_used(tmp_path: Path, how: str) -> None:
    with cluster(tmp_path) as driver:
        expected = products(driver, NUMBERS)
    before = {path: path.read_bytes() for path in in_store(tmp_path)}
    victim = in_store(tmp_path)[5]
    content = before[victim]
    damaged = {"cut": content[:-2], "flipped": content[:-2] + bytes([content[-2] ^ 4]) + content[-1:], "emptied": b""}
    if how == "lost":
        victim.unlink()
    else:
        victim.write_bytes(damaged[how])
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS) == expected
    assert calls.numbers == len(NUMBERS) + 1
    assert {path: path.read_bytes() for path in in_store(tmp_path)} == before


def test_two_drivers_on_one_store_find_the_same(tmp_path: Path) -> None:
    with cluster(tmp_path) as one, cluster(tmp_path) as other:
        ones = one.workers(assignment())
        others = other.workers(assignment())
        parts = [{"number": number} for number in NUMBERS]
        both = [workers.compute("multiply", parts, lambda part: None) for workers in (ones, others)]
        found = [[next(replies).item() for replies in both] for _ in parts]
    assert found == [[2.0 * number] * 2 for number in NUMBERS]


def test_units_of_another_model_are_not_taken(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS, by=2) == [2.0 * number for number in NUMBERS]
        assert products(driver, NUMBERS, by=3) == [3.0 * number for number in NUMBERS]
    assert calls.numbers == 2 * len(NUMBERS)


def test_an_error_of_the_work_ends_it_and_leaves_no_unit(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver, pytest.raises(ValueError, match="-1 is below zero"):
        products(driver, [1, 2, -1])
    assert calls.numbers == 3
    assert len(in_store(tmp_path)) == 2


def test_shared_texts_are_read_by_their_ids(tmp_path: Path) -> None:
    queries = {"q1": "half of a pair \ud83d", "q2": "", "q3": "three"}
    texts = PairTexts(TextTable.of(queries), TextTable.of({}))
    with cluster(tmp_path) as driver:
        workers = driver.workers(assignment())
        parts = [
            {"keys": keys, "content": "-".join(keys), "shared": workers.share(texts)} for keys in (["q2", "q1"], ["q3"])
        ]
        found = [*workers.compute("look up", parts, lambda part: None)]
    assert found == [["", queries["q1"]], ["three"]]


def test_a_store_that_fails_is_the_workers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unimoe.core.errors import UsageError

    with cluster(tmp_path) as driver:
        workers = driver.workers(assignment())

        def full(*_: object) -> None:
            raise UsageError("the store is full; free room there")

        monkeypatch.setattr(UnitStore, "write", full)
        with pytest.raises(UsageError, match="free room there"):
            [*workers.compute("multiply", [{"number": 1}], lambda part: None)]


def test_the_board_counts_items(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        products(driver, NUMBERS, items=10)
        assert counted(driver, 12, items=120) == (120, 0, 12)
