"""A reranking that dies loses at most the shard under way, and ends as one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import long_collection, write_invented, written
from support.scripts import SCRIPTS, Done, call_script, successful
from support.trainings import KilledError

from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import DrillDown, EvalResult, write_result

pytestmark = pytest.mark.usefixtures("one_thread")

SHARDS = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "long", long_collection())
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("undisturbed")
    assert evaluate(data, output_dir).returncode == 0
    return output_dir


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the shards that the model was asked to score."""
    sizes: list[int] = []
    rerank_ids = UnimodelForExp1.rerank_ids

    def counted(self: UnimodelForExp1, sequences: list[list[int]], **options: Any) -> Any:
        sizes.append(len(sequences))
        return rerank_ids(self, sequences, **options)

    monkeypatch.setattr(UnimodelForExp1, "rerank_ids", counted)
    return sizes


def options(data: Path, output_dir: Path) -> list[str]:
    given = {"--config": data / "tiny.yaml", "--dataset": "long", "--task": "reranking", "--output-dir": output_dir}
    return ["--zero-shot", *(str(part) for option in given.items() for part in option)]


def evaluate(data: Path, output_dir: Path, *more: str) -> Done:
    return call_script("evaluate.py", *options(data, output_dir), *more, UNIMOE_DATA=str(data))


def shards(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "zero_shot" / "seed_none" / "shards").rglob("*.json"))


def kill_after(count: int, data: Path, output_dir: Path) -> None:
    """Evaluate in a process of its own, and kill it with a signal it cannot catch once so many shards are done."""
    command = [sys.executable, str(SCRIPTS / "evaluate.py"), *options(data, output_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNIMOE_DATA": str(data)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + 300
        while len(shards(output_dir)) < count:
            assert process.poll() is None, "the run ended before the moment came"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)


def test_killed_at_any_shard_it_goes_on_and_ends_the_same(
    data: Path, undisturbed: Path, tmp_path: Path, scored: list[int]
) -> None:
    kill_after(2, data, tmp_path)
    finished = len(shards(tmp_path))
    assert 2 <= finished < SHARDS
    successful(evaluate(data, tmp_path))
    assert len(scored) == SHARDS - finished
    assert written(tmp_path) == written(undisturbed)


def test_between_run_and_result_no_score_is_lost(
    data: Path, undisturbed: Path, tmp_path: Path, scored: list[int]
) -> None:
    def dies(folder: Path, result: EvalResult, detail: DrillDown) -> Path:
        if result.config_name == "zero_shot":
            raise KilledError
        return write_result(folder, result, detail)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unimoe.evaluation.store.write_result", dies)
        for place in ("one", "other"):
            with pytest.raises(KilledError):
                evaluate(data, tmp_path / place)
    one, other = tmp_path / "one", tmp_path / "other"
    assert (one / "zero_shot/seed_none/runs/reranking/long.trec").is_file()
    assert len(scored) == 2 * len(shards(one)) == 2 * SHARDS
    shards(one)[3].write_text("{", encoding="utf-8")
    assert evaluate(data, one).returncode == 0
    assert len(scored) == 2 * SHARDS + 1
    assert written(one) == written(undisturbed)
    assert not list(one.glob("*/*/shards/*"))
    # Shards of another prompt are not met, and end with its result.
    assert evaluate(data, other, "--set", "prompt.instruction=Think.").returncode == 0
    assert len(scored) == 3 * SHARDS + 1
    assert shards(other) == []


def test_a_second_process_is_refused_in_one_line_and_the_first_goes_on(
    data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second: list[Done] = []
    rerank_ids = UnimodelForExp1.rerank_ids

    def disturbed(self: UnimodelForExp1, sequences: list[list[int]], **options: Any) -> Any:
        if not second:
            second.append(evaluate(data, tmp_path))
        return rerank_ids(self, sequences, **options)

    monkeypatch.setattr(UnimodelForExp1, "rerank_ids", disturbed)
    assert evaluate(data, tmp_path).returncode == 0
    assert second[0].returncode == 2
    assert "another process works in this folder; wait for it, or choose another" in second[0].stderr
    assert written(tmp_path) == written(undisturbed)
