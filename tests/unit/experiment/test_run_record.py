"""The record of a job's cost: sums over phases and runs, and what a killed phase leaves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.json_files import read_plain

from unimoe.experiment.run_record import RECORD, RunRecord


def content(folder: Path) -> Any:
    return read_plain(folder / RECORD)


def test_phases_add_up_over_runs(tmp_path: Path) -> None:
    flop = 0
    record = RunRecord(tmp_path, lambda: flop, time.perf_counter() - 5)
    with record.phase("loading"):
        flop += 2 * 10**12
    with record.phase("reranking"):
        flop += 10**12
    again = RunRecord(tmp_path, lambda: 10**12, time.perf_counter() - 7)
    with again.phase("reranking"):
        pass
    found = content(tmp_path)
    assert {name: phase["matmul_tflop"] for name, phase in found["phases"].items()} == {"loading": 2, "reranking": 2}
    assert found["matmul_tflop"] == 4
    assert 5 <= found["phases"]["loading"]["seconds"] < 65
    assert 7 <= found["phases"]["reranking"]["seconds"] < 67
    assert found["seconds"] == pytest.approx(sum(phase["seconds"] for phase in found["phases"].values()), abs=1e-4)
    assert again.elapsed == found["seconds"]


def test_facts_of_the_first_run_are_kept_where_asked(tmp_path: Path) -> None:
    for threads in (1, 2):
        record = RunRecord(tmp_path, lambda: 0, time.perf_counter())
        record.note({"threads": threads})
        record.note({"estimate_seconds": threads}, keep=True)
    assert (content(tmp_path)["threads"], content(tmp_path)["estimate_seconds"]) == (2, 1)
