"""A driver with real workers in threads: what is finished is read, what is damaged is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine import PATIENCE, ThreadActors, calls, recipe

from unimoe.cluster.cluster import Cluster, ClusterWorkers, SetAsideError
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import VERSIONS
from unimoe.core.errors import DataError, UsageError

NUMBERS = [*range(12)]


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    calls.made = calls.numbers = 0


@contextmanager
def cluster(folder: Path, workers: int = 2, actors: ThreadActors | None = None) -> Iterator[Cluster]:
    opened = Cluster(actors or ThreadActors(str(folder), workers), UnitStore(str(folder)))
    try:
        yield opened
    finally:
        opened.close()


def multipliers(driver: Cluster, by: int = 2) -> ClusterWorkers:
    return driver.workers("work", "units/work", recipe(by), str(by))


def products(driver: Cluster, numbers: list[int], by: int = 2, **more: Any) -> list[float]:
    parts = [{"number": number, "label": f"number {number}", **more} for number in numbers]
    found = multipliers(driver, by).compute("multiply", parts)
    return [reply.item() for reply in found]


def in_store(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "units").rglob("*") if path.is_file())


def test_each_worker_loads_a_model_once_and_what_is_finished_is_not_computed_again(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS[:7]) == [2.0 * number for number in NUMBERS[:7]]
    assert calls.made <= 2
    with cluster(tmp_path, workers=1) as driver:
        assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
        line = driver.board.line("work")
        assert (line.done, line.found) == (12, 7)
    assert calls.numbers == len(in_store(tmp_path)) == len(NUMBERS)


def test_a_lost_unit_is_computed_again_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        expected = products(driver, NUMBERS)
    victim = in_store(tmp_path)[5]
    victim.unlink()
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS) == expected
    assert calls.numbers == len(NUMBERS) + 1
    victim.write_bytes(victim.read_bytes()[:-2])
    with cluster(tmp_path) as driver, pytest.raises(DataError, match=f"{victim.name} is damaged: delete it, and run"):
        products(driver, NUMBERS)


def test_an_error_of_the_work_ends_it_and_leaves_no_unit(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver, pytest.raises(ValueError, match="-1 is below zero"):
        products(driver, [1, 2, -1])
    assert (calls.numbers, len(in_store(tmp_path))) == (3, 2)


class TestLosses:
    def test_units_of_lost_machines_are_computed_by_others_however_many_are_lost(self, tmp_path: Path) -> None:
        actors = ThreadActors(str(tmp_path), 2)
        actors.losses = 9
        with cluster(tmp_path, actors=actors) as driver:
            assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
        assert len(actors.computed) == len(NUMBERS) + 9  # nothing is computed twice but the units in flight
        assert calls.numbers == len(NUMBERS)

    def test_a_unit_that_kills_its_workers_is_set_aside_by_name_and_the_rest_is_kept(self, tmp_path: Path) -> None:
        actors = ThreadActors(str(tmp_path), 2)
        actors.deadly = {3}
        with cluster(tmp_path, actors=actors) as driver:
            with pytest.raises(SetAsideError, match=r"^work, number 3: set aside, 3 worker processes died under it"):
                products(driver, NUMBERS)
            assert actors.computed.count(3) == 3
            assert sorted(actors.computed) == sorted([*NUMBERS, 3, 3])
            assert len(in_store(tmp_path)) == len(NUMBERS) - 1
            assert len(driver.board.line("work").failed) == 1
            actors.deadly = set()
            assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
        assert calls.numbers == len(NUMBERS)

    def test_closing_ends_whoever_waits(self, tmp_path: Path) -> None:
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                multipliers(driver).ask("multiply", {"number": 1})
            except DataError as error:
                errors.append(error)

        with cluster(tmp_path, workers=0) as driver:
            waiter = threading.Thread(target=wait)
            waiter.start()
        waiter.join(PATIENCE)
        assert [str(error) for error in errors] == ["the engine was closed"]


class TestAdmission:
    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            (
                {"sees_store": False},
                "does not see the store .*; give --store a URL or a folder that all",
            ),
            ({"versions": dict.fromkeys(VERSIONS, "0")}, "has unimoe 0, the driver .*; install the same packages"),
        ],
    )
    def test_a_worker_that_must_not_be_used_ends_the_run(
        self, tmp_path: Path, facts: dict[str, Any], words: str
    ) -> None:
        with (
            cluster(tmp_path, actors=ThreadActors(str(tmp_path), 1, **facts)) as driver,
            pytest.raises(UsageError, match=words),
        ):
            products(driver, NUMBERS)

    @pytest.mark.parametrize("allow", [False, True])
    def test_a_worker_on_another_kind_of_device_is_left_idle(
        self, tmp_path: Path, allow: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        actors = ThreadActors(str(tmp_path), 1)
        driver = Cluster(actors, UnitStore(str(tmp_path)), allow_devices=allow)
        try:
            driver.facts()
            actors.change(count=2, device="cuda (H100)")
            deadline = time.monotonic() + PATIENCE
            while actors.asked < 2 or driver.size < 1 + allow:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert driver.size == 1 + allow
        finally:
            driver.close()
        assert ("left idle: " in capsys.readouterr().err) != allow


def test_a_unit_goes_to_the_worker_that_holds_its_model(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        for number in NUMBERS:
            products(driver, [number], by=2)
            products(driver, [number], by=3)
    assert calls.made <= 3  # the first unit of the other model may find its worker late
