"""Two processes under torchrun find what one finds, and speak with one voice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.experiments import tiny_experiment, write_tiny_experiment
from support.reranking import long_collection, write_invented, written
from support.scripts import SCRIPTS, assert_refused, call_script

from unimoe.evaluation.evaluator import Evaluator
from unimoe.evaluation.measurement import Measurement
from unimoe.evaluation.processes import Processes
from unimoe.evaluation.subjects import Subject, first_stage_subject
from unimoe.evaluation.tiers import LoadedDataset, chosen_datasets
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "long", long_collection())
    write_tiny_experiment(folder)
    return folder


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes on this machine, one thread each."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_two_processes_find_what_one_finds(data: Path, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    options = ["--zero-shot", "--config", str(data / "tiny.yaml"), "--datasets", "long", "--task", "reranking"]
    alone = call_script("evaluate.py", *options, "--output-dir", one, UNIMOE_DATA=str(data))
    together = torchrun(str(SCRIPTS / "evaluate.py"), *options, "--output-dir", two, UNIMOE_DATA=str(data))
    assert together.returncode == 0, together.stderr
    assert together.stdout.replace(two, one) == alone.stdout
    assert together.stderr.count("reranking long: zero_shot") == 1
    assert written(Path(two)) == written(Path(one))


def test_what_is_not_shared_is_left_to_the_leader(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> UnimodelForExp1:
        raise AssertionError("a follower loads no model for this")

    monkeypatch.setenv("UNIMOE_DATA", str(data))
    experiment = tiny_experiment(data)
    loaded = LoadedDataset(chosen_datasets(experiment, ["long"])[0])
    follower = Evaluator(tmp_path / "outputs", processes=Processes(1, 2))
    assert follower.evaluate(Measurement(first_stage_subject(experiment), "reranking", loaded)) is None
    assert follower.evaluate(Measurement(Subject("zero_shot", experiment, load), "embedding", loaded)) is None
    assert not (tmp_path / "outputs").exists()


def test_an_experiment_is_refused(data: Path) -> None:
    done = call_script("run_experiment.py", "--config", data / "tiny.yaml", WORLD_SIZE="2", RANK="0")
    assert_refused(done, 2, "an experiment runs in one process", "without torchrun")
