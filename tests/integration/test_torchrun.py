"""Several processes under torchrun train as one, and speak with one voice; nothing else runs in several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.experiments import write_tiny_experiment
from support.scripts import SCRIPTS, assert_refused, call_script

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# What accelerate calls several GPUs is torchrun with its own settings; there is none in this test.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tiny_experiment(folder)
    return folder


def launched(launcher: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes on this machine, one thread each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("launcher", "settings"),
    [
        pytest.param(TORCHRUN, ["training.evaluate_every=3", "training.patience=1"], id="torchrun"),
        pytest.param(
            ACCELERATE,
            ["training.ranking.loss=softmax", "training.token_budget=300", "arms.joint_r8.aggregation=pcgrad"],
            id="accelerate",
        ),
        pytest.param(
            TORCHRUN, ["training.ranking.loss=score_es", "arms.joint_r8.aggregation=ortho_lora"], id="sampled loss"
        ),
    ],
)
@pytest.mark.slow
def test_two_processes_train_as_one(data: Path, tmp_path: Path, launcher: list[str], settings: list[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    common = ["training.dev={queries: 4, depth: 3, pool: 30}", "training.conflicts.interval=3", *settings]
    overrides = [word for setting in common for word in ("--set", setting)]
    options = ["--config", str(data / "tiny.yaml"), "--arm", "joint_r8", *overrides]
    alone = call_script("train.py", *options, "--output-dir", str(one))
    assert alone.returncode == 0, alone.stderr
    together = launched(launcher, str(SCRIPTS / "train.py"), *options, "--output-dir", str(two))
    assert together.returncode == 0, together.stderr
    assert together.stdout.strip() == alone.stdout.strip().replace(str(one), str(two))
    files, logs = {}, {}
    for folder in (one, two):
        place = folder / "joint_r8" / "seed_0"
        left = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".lock")
        files[folder] = sorted(str(path.relative_to(folder)) for path in left)
        logs[folder] = {path.name: read_jsonl(path) for path in (place / "logs").glob("*.jsonl")}
    assert files[one] == files[two]
    assert logs[one].keys() == logs[two].keys()
    for name, lines in logs[one].items():
        assert len(logs[two][name]) == len(lines) > 0
    for line, expected in zip(logs[two]["train.jsonl"], logs[one]["train.jsonl"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
        assert line["tokens"] == expected["tokens"]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("script", "options", "what"),
    [
        ("run_experiment.py", [], "an experiment runs in one process"),
        ("evaluate.py", ["--zero-shot"], "an evaluation runs in one process; start it without torchrun; --engine ray"),
    ],
)
def test_all_but_training_is_refused(data: Path, script: str, options: list[str], what: str) -> None:
    done = call_script(script, *options, "--config", data / "tiny.yaml", WORLD_SIZE="2", RANK="0")
    assert_refused(done, 2, what, "without torchrun")
