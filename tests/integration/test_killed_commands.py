"""Killed commands, in a shard of pairs or between two files, and workers that compute in their place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.caption_pairs import small_pairs, write_npz
from support.engine import ThreadActors
from support.evaluations import assert_same_files, assert_same_results
from support.experiments import KilledError, write_tiny_experiment
from support.heads import topics_folder
from support.reranking import invented, long_collection, write_invented, written
from support.results import write_experiment
from support.scripts import call_script, call_unimoe, kill_script_when, successful
from support.studies import encoder_study, loss_study, toy_keys
from support.tiny_encoders import save_tiny_encoder
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import DrillDown, EvalResult, write_result

pytestmark = pytest.mark.usefixtures("one_thread")


Prepare = Callable[[Path], str]
"""Writes what a command reads into a folder, and returns its command line."""


def retrieve(data: Path) -> str:
    for name in ("one", "two"):
        write_invented(data / name, invented(documents=30, queries=4, name=name))
    encoder = save_tiny_encoder(data / "encoder")
    return f"retrieve --dataset path:{data}/one,path:{data}/two --set encoder.base={encoder}"


def label_pairs(data: Path) -> str:
    topics_folder(data / "topics")
    grader = save_tiny_cross_encoder(data / "grader")
    return (
        f"label-pairs --dataset path:{data}/topics --model cross-encoder:{grader} --set thresholds=[0.000001] "
        "--set sampling.queries=6 --set shard_queries=2 --set depth=6"
    )


def compare_heads(data: Path) -> str:
    topics_folder(data / "topics")
    encoder = save_tiny_encoder(data / "encoder")
    return (
        f"compare-heads --task path:{data}/topics --set encoder.base={encoder} --set batch_size=12 "
        "--set pools.depth=20 --methods zero_shot,infonce,eggroll --set population_size=16 --num-steps 4 --settings 2 "
        "--seeds 2 --set eval_every=2"
    )


def compare_translators(data: Path) -> str:
    pairs = write_npz(data / "pairs.npz", small_pairs())
    return f"compare-translators --data {pairs} --epochs 2 --seeds 2 --settings 2 --set hidden=8 --set sampler.batch=32"


def study_of_encoders(data: Path) -> str:
    variants = {
        "layer": {"freeze_base": True, "learning_rate": 3e-2},
        "all": {"out_dim": None, "learning_rate": 1e-9, "negatives": {"per_query": 1, "depth": 5}},
    }
    return f"study {encoder_study(data, toy_keys(data) | {'epochs': 1}, variants)} --seeds 2"


COMMANDS: dict[str, Prepare] = {
    "retrieve": retrieve,
    "label-pairs": label_pairs,
    "compare-heads": compare_heads,
    "compare-translators": compare_translators,
    "study of encoders": study_of_encoders,
    "study of losses": lambda data: f"study {loss_study(data)}",
    "analyze": lambda _: "analyze --iterations 50",
}


class Job(NamedTuple):
    """A command line, a folder for what it leaves, and how many files it left in its subfolder ``whole``."""

    line: str
    folder: Path
    files: int


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A command that ran undisturbed."""
    folder = tmp_path_factory.mktemp("job")
    line = COMMANDS[request.param](folder)
    if line.startswith("analyze"):
        for out in ("whole", "killed"):
            write_experiment(folder / out, seeds=(0, 1), queries=10)
    else:
        line += " --device cpu --threads 1"
    return Job(line, folder, files=run(line, folder / "whole")[1])


def run(line: str, out: Path, kill_at: int | None = None) -> tuple[str | None, int]:
    """Run a command until it puts a file of this number into its place.

    Returns:
        What it said on stderr, None where it was killed, and how many files it has put.
    """
    replace, written = os.replace, 0

    def counted(source: str | Path, target: str | Path) -> None:
        nonlocal written
        if written == kill_at:
            raise KilledError
        replace(source, target)
        written += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted)
        cache = str(out.parent / f"cache-{out.name}")  # which keeps vectors for other folders
        try:
            done = successful(call_unimoe(*line.split(), "--output-dir", out, UNIMOE_CACHE=cache))
        except KilledError:
            return None, written
    return done.stderr, written


@pytest.mark.parametrize(
    "job", ["retrieve", "label-pairs", "compare-heads", "compare-translators", "analyze"], indirect=True
)
def test_killed_between_two_files_it_goes_on_and_ends_the_same(job: Job) -> None:
    killed = job.folder / "killed"
    for share in (0.2, 0.5, 0.9):
        assert run(job.line, killed, kill_at=int(share * job.files))[0] is None or share > 0.2
    run(job.line, killed)
    assert_same_files(job.folder / "whole", killed)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("job", [name for name in COMMANDS if name != "analyze"], indirect=True)
def test_workers_of_a_cluster_leave_the_same_and_do_nothing_twice(job: Job) -> None:
    whole, together, store = (job.folder / name for name in ("whole", "together", "store"))

    def by_workers() -> str:
        stderr, _ = run(f"{job.line} --engine ray --store {store}", together)
        assert_same_files(whole, together)
        return str(stderr)

    by_workers()
    assert list((store / "units").rglob("*"))
    shutil.rmtree(store)
    assert "by workers" not in by_workers(), "what is there is not done again"
    for lost in sorted(together.glob("*/seed_1"))[-1:]:  # of a study
        shutil.rmtree(lost)
        assert "trainings by workers: 1:" in by_workers()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch, tmp_cache: Path) -> None:
    """Workers are threads."""
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, store, *_: ThreadActors(store, 2))


@pytest.mark.usefixtures("threads", "without_report")
def test_workers_train_and_evaluate_an_experiment_the_same(tmp_path: Path) -> None:
    config = write_tiny_experiment(tmp_path)
    small = ("seeds=[0]", "training.steps=2", "training.save_every=1", "evaluation.bundled.queries=3")
    shared = ["--config", str(config), *(word for setting in small for word in ("--set", setting))]
    successful(call_script("run_experiment.py", *shared, "--threads", "1", "--output-dir", tmp_path / "alone"))
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    successful(call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together"))
    assert_same_results(tmp_path / "alone", tmp_path / "together")
    manifest = json.loads((tmp_path / "together" / "joint_r8" / "seed_0" / "checkpoint" / "unimoe.json").read_text())
    assert manifest["config"]["output_dir"] == str(tmp_path / "together")
    again = successful(call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together"))
    assert again.stderr.count("already done") == 12

    # Several checkpoints by a pattern, into a folder of their own: all units are in the store.
    pattern = str(tmp_path / "together" / "*" / "seed_*" / "checkpoint")
    options = ("--checkpoint", pattern, "--eval-tier", "bundled", "--output-dir", tmp_path / "third")
    successful(call_script("evaluate.py", *options, *cluster))
    boards = [json.loads(path.read_text()) for path in (tmp_path / "store" / "drivers").iterdir()]
    lines = max(boards, key=lambda board: board["started"])["lines"]
    assert [line["found"] for line in lines] == [line["done"] for line in lines]
    # The same without a cluster.
    fourth = successful(call_script("evaluate.py", *options[:-1], tmp_path / "fourth", "--threads", "1"))
    assert_same_results(tmp_path / "fourth", tmp_path / "third")
    assert "joint_r8, seed 0:" in fourth.stdout


@pytest.mark.usefixtures("threads")
def test_a_server_is_asked_by_one_process(tmp_path: Path) -> None:
    write_invented(tmp_path / "set", invented(documents=3, queries=2, name="set"))
    asked = ("--model", "http://127.0.0.1:9/v1", "--set", "served.api=tei", "--set", "served.model=tiny")
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"), "--output-dir", tmp_path / "out")
    done = call_script("evaluate.py", *asked, "--dataset", f"path:{tmp_path / 'set'}", *cluster)
    assert done.returncode == 2, done.stderr
    assert "a model behind a server is asked by one process; leave --engine out" in done.stderr


SHARDS = 7


@pytest.fixture(scope="module")
def long_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "long", long_collection())
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(long_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("undisturbed")
    assert evaluate(long_data, output_dir).returncode == 0
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


def evaluate(long_data: Path, output_dir: Path, *more: str, run: Callable[..., Any] = call_script) -> Any:
    given = ("--zero-shot", "--config", long_data / "tiny.yaml", "--dataset", "long", "--task", "reranking")
    return run("evaluate.py", *given, "--output-dir", output_dir, *more, UNIMOE_DATA=str(long_data))


def shards(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "zero_shot" / "seed_none" / "shards").rglob("*.json"))


def test_killed_at_any_shard_it_goes_on_and_ends_the_same(
    long_data: Path, undisturbed: Path, tmp_path: Path, scored: list[int]
) -> None:
    kill = partial(kill_script_when, lambda: len(shards(tmp_path)) >= 2, OMP_NUM_THREADS="1")
    evaluate(long_data, tmp_path, run=kill)
    finished = len(shards(tmp_path))
    assert 2 <= finished < SHARDS
    successful(evaluate(long_data, tmp_path))
    assert len(scored) == SHARDS - finished
    assert written(tmp_path) == written(undisturbed)


def test_between_run_and_result_no_score_is_lost(
    long_data: Path, undisturbed: Path, tmp_path: Path, scored: list[int]
) -> None:
    def dies(folder: Path, result: EvalResult, detail: DrillDown) -> Path:
        if result.config_name == "zero_shot":
            raise KilledError
        return write_result(folder, result, detail)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unimoe.evaluation.store.write_result", dies)
        for place in ("one", "other"):
            with pytest.raises(KilledError):
                evaluate(long_data, tmp_path / place)
    one, other = tmp_path / "one", tmp_path / "other"
    assert (one / "zero_shot/seed_none/runs/reranking/long.trec").is_file()
    assert len(scored) == 2 * len(shards(one)) == 2 * SHARDS
    shards(one)[3].write_text("{", encoding="utf-8")
    assert evaluate(long_data, one).returncode == 0
    assert len(scored) == 2 * SHARDS + 1
    assert written(one) == written(undisturbed)
    assert not list(one.glob("*/*/shards/*"))
    # Shards of another prompt are not met, and end with its result.
    assert evaluate(long_data, other, "--set", "prompt.instruction=Think.").returncode == 0
    assert len(scored) == 3 * SHARDS + 1
    assert shards(other) == []
