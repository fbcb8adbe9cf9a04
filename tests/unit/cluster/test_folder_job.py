"""Folders that workers write: taken over whole, gone on with by others, and never by another kind of device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine import ThreadActors

from unimoe.cluster import folder_job
from unimoe.cluster.cluster import Cluster
from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part
from unimoe.core.errors import DataError

PART: Part = {"key": "k", "steps": 4}
RECIPE = {"maker": f"{__name__}:jobs_of"}
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


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_job, "_EVERY", -1.0)
    taken.clear()


@contextmanager
def cluster(folder: Path, device: str | None = None) -> Iterator[Cluster]:
    store = UnitStore(str(folder / "store"))
    driver = Cluster(ThreadActors(store.url, 1, **({"device": device} if device else {})), store)
    try:
        yield driver
    finally:
        driver.close()


def test_the_driver_takes_the_folder_over_with_its_own_path(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        assert done_by_worker(driver, "count", RECIPE, PART, tmp_path / "out", items=4) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["counter.json", "place.json"]
    assert (tmp_path / "out" / "place.json").read_text() == f'"{tmp_path}/out/model"'


@pytest.mark.parametrize("device", [None, "cuda (H100)"])
def test_another_worker_goes_on_where_one_ended_on_the_same_kind_of_device(tmp_path: Path, device: str | None) -> None:
    with cluster(tmp_path) as driver, pytest.raises(DataError, match="stopped"):
        done_by_worker(driver, "count", RECIPE, {**PART, "stops": 1}, tmp_path / "out")
    with cluster(tmp_path, device=device) as driver:
        done_by_worker(driver, "count", RECIPE, PART, tmp_path / "out")
        done_by_worker(driver, "count", RECIPE, PART, tmp_path / "again")
    assert taken == ([0, 1, 0, 1, 2, 3] if device else [0, 1, 2, 3])
    assert (tmp_path / "again" / "counter.json").read_text() == "4"


def test_a_store_that_lost_the_folder_is_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver:
        done_by_worker(driver, "count", RECIPE, PART, tmp_path / "out")
        for path in (tmp_path / "store" / "folders").rglob("files.json"):
            path.unlink()
        with pytest.raises(DataError, match=r"is missing; delete units/folders there"):
            done_by_worker(driver, "count", RECIPE, PART, tmp_path / "again")
