"""A driver with real workers in threads: finished units and folders are read, and replies and errors arrive."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from support.engine import PATIENCE, ThreadActors, calls, recipe

from unimoe.cluster import folder_job
from unimoe.cluster.cluster import Cluster, ClusterWorkers, SetAsideError
from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import VERSIONS, Compute, Part, Worker, packed, unpacked
from unimoe.core.errors import DataError, InputError, UsageError

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
    return ClusterWorkers(driver, "work", "units/work", recipe(by), str(by))


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
    for damaged in (victim.read_bytes()[:-2], b"[]\n", b'{"dtype": "<f5", "shape": [1]}\n1'):
        victim.write_bytes(damaged)
        message = f"{victim.name} is damaged: delete it, and run"
        with cluster(tmp_path) as driver, pytest.raises(DataError, match=message):
            products(driver, NUMBERS)


def test_an_error_of_the_work_ends_it_and_leaves_no_unit(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver, pytest.raises(ValueError, match="-1 is below zero"):
        products(driver, [1, 2, -1])
    assert (calls.numbers, len(in_store(tmp_path))) == (3, 2)


def test_a_unit_that_kills_its_workers_is_set_aside_by_name_and_the_rest_is_kept(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sees_store": False}, "does not see the store .*; give --store a URL or a folder that all"),
        ({"versions": dict.fromkeys(VERSIONS, "0")}, "has unimoe 0, the driver .*; install the same packages"),
    ],
)
def test_a_worker_that_must_not_be_used_ends_the_run(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with (
        cluster(tmp_path, actors=ThreadActors(str(tmp_path), 1, **facts)) as driver,
        pytest.raises(UsageError, match=words),
    ):
        products(driver, NUMBERS)


@pytest.mark.parametrize("allow", [False, True])
def test_a_worker_on_another_kind_of_device_is_left_idle(
    tmp_path: Path, allow: bool, capsys: pytest.CaptureFixture[str]
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


PART: Part = {"key": "k", "steps": 4}
COUNTING = {"maker": f"{__name__}:jobs_of"}
taken: list[int] = []
"""Steps that were taken, by all workers."""


def jobs_of(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The job of counting to a number in a file; it may stop in between."""

    def write(part: Part, folder: Path, tick: Tick) -> int:
        counter = folder / "counter.json"
        done = int(counter.read_text()) if counter.exists() else 0
        for step in range(done, part["steps"]):
            taken.append(step)
            counter.write_text(str(step + 1))
            tick()
            if part.get("stops") == step:
                raise DataError("stopped")
        (folder / "state.safetensors").write_text("of no use to the driver")
        (folder / "place.json").write_text(f'"{folder}/model"')
        return done

    return folder_jobs(write, store)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save after each step."""
    monkeypatch.setattr(folder_job, "_EVERY", -1.0)
    taken.clear()


def on_store(folder: Path, device: str | None = None) -> AbstractContextManager[Cluster]:
    """A driver of one worker, over a store inside ``folder``."""
    facts = {"device": device} if device else {}
    return cluster(folder / "store", actors=ThreadActors(str(folder / "store"), 1, **facts))


def test_the_driver_takes_the_folder_over_with_its_own_path_and_names_one_that_was_lost(tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        assert done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", items=4) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["counter.json", "place.json"]
    assert (tmp_path / "out" / "place.json").read_text() == f'"{tmp_path}/out/model"'
    for path in (tmp_path / "store" / "folders").rglob("files.json"):
        path.unlink()
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=r"is missing; delete units/folders there"):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("device", [None, "cuda (H100)"])
def test_another_worker_goes_on_where_one_ended_on_the_same_kind_of_device(tmp_path: Path, device: str | None) -> None:
    with on_store(tmp_path) as driver, pytest.raises(DataError, match="stopped"):
        done_by_worker(driver, "count", COUNTING, {**PART, "stops": 1}, tmp_path / "out")
    with on_store(tmp_path, device=device) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out")
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again")
    assert taken == ([0, 1, 0, 1, 2, 3] if device else [0, 1, 2, 3])
    assert (tmp_path / "again" / "counter.json").read_text() == "4"


class OwnError(Exception):
    """Cannot be made of its message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


ERRORS: dict[str, Exception] = {
    "data": DataError("no such file\nin two lines"),
    "usage": UsageError("no such key: \ud83d"),
    "memory": torch.OutOfMemoryError("no room"),
    "value": ValueError("no number"),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
    "input": InputError(7, "too long"),
    "own": OwnError(1, 2),
}


def failing_jobs(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The job that raises an error."""

    def fail(part: Part) -> None:
        raise ERRORS[part["error"]]

    return {"fail": fail}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_arrive_with_kind_message_and_place(tmp_path: Path, name: str) -> None:
    worker = Worker(str(tmp_path), "cpu", torch.get_num_threads())
    reply = worker.compute({"maker": f"{__name__}:failing_jobs"}, "fail", {"error": name}, ("units", "key"))
    assert UnitStore(str(tmp_path)).keys("units") == set()
    found = pickle.loads(pickle.dumps(reply))
    if name == "own":  # which cannot be made again
        assert (type(found), str(found)) == (RuntimeError, "OwnError: 1 and 2")
        return
    assert (type(found), str(found)) == (type(ERRORS[name]), str(ERRORS[name]))
    assert found.__notes__[0].startswith("in ")
    if isinstance(found, InputError):
        assert (found.index, found.reason) == (7, "too long")


DTYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_arrays_arrive_to_the_bit(value: NDArray[np.float64]) -> None:
    reply = packed(value)
    found = unpacked(reply)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tobytes() == value.tobytes()
    assert found.flags.writeable


@given(JSON)
def test_json_values_arrive(value: object) -> None:
    assert unpacked(packed(value)) == value
