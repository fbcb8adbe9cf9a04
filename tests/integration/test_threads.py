"""The number of threads of an experiment's folder: chosen once, kept when it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.experiments import tiny_experiment

from unimoe.experiment.job import ExperimentRun
from unimoe.experiment.job import job as job

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("two_threads")


def probe_finds(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "faster_threads", lambda _: count)


def pinned(folder: Path) -> int:
    number: int = json.loads((folder / "outputs" / "experiment.json").read_text(encoding="utf-8"))["threads"]
    return number


def test_a_resumed_run_keeps_the_first_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny_experiment(tmp_path)
    probe_finds(1, monkeypatch)
    ExperimentRun(experiment, CPU).settle_threads()
    assert (torch.get_num_threads(), pinned(tmp_path)) == (1, 1)
    torch.set_num_threads(2)
    probe_finds(2, monkeypatch)
    ExperimentRun(experiment, CPU).settle_threads()
    assert (torch.get_num_threads(), pinned(tmp_path)) == (1, 1)


def test_another_number_is_taken_where_asked_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tiny_experiment(tmp_path)
    probe_finds(1, monkeypatch)
    ExperimentRun(experiment, CPU).settle_threads()
    ExperimentRun(experiment, CPU).settle_threads(2)
    assert (torch.get_num_threads(), pinned(tmp_path)) == (2, 1)
    assert "was started with 1 thread, this run takes 2; new scores may have other last bits" in capsys.readouterr().err


def test_a_machine_with_fewer_cores_chooses_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny_experiment(tmp_path)
    ExperimentRun(experiment, CPU).settle_threads(8)
    torch.set_num_threads(2)
    probe_finds(1, monkeypatch)
    ExperimentRun(experiment, CPU).settle_threads()
    assert (torch.get_num_threads(), pinned(tmp_path)) == (1, 8)
