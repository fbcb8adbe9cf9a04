"""Killed commands, in a shard of pairs or between two files, and workers in their place: threads, and those of Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.caption_pairs import small_pairs, write_npz
from support.engine import ThreadActors
from support.experiments import KilledError, tiny_experiment_dict, write_tiny_experiment
from support.results import write_experiment
from support.scripts import (
    SCRIPTS,
    assert_refused,
    assert_same_files,
    assert_same_results,
    call_script,
    call_unimoe,
    successful,
    write_plain,
)
from support.studies import encoder_study, loss_study, topics_folder, toy_keys
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder
from support.toy_collections import invented, write_invented, written

from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import DrillDown, EvalResult, write_result

pytestmark = pytest.mark.usefixtures("one_thread")


def retrieve(data: Path) -> str:
    for name in ("one", "two"):
        write_invented(data / name, invented(documents=30, queries=4, name=name))
    encoder = save_tiny_encoder(data / "encoder")
    return f"retrieve --dataset path:{data}/one,path:{data}/two --set encoder.base={encoder}"


def label(data: Path) -> str:
    topics_folder(data / "topics")
    grader = save_tiny_cross_encoder(data / "grader")
    return (
        f"label --dataset path:{data}/topics --model cross-encoder:{grader} --set thresholds=[0.000001] "
        "--set sampling.queries=6 --set shard_queries=2 --set depth=6"
    )


def study_of_heads(data: Path) -> str:
    topics_folder(data / "topics")
    encoder = save_tiny_encoder(data / "encoder")
    return (
        f"study studies/heads_compare --set task=path:{data}/topics --set encoder.base={encoder} --set batch_size=12 "
        "--set pools.depth=20 --only zero_shot,infonce,eggroll --set population_size=16 --set num_steps=4 "
        "--set settings=2 --seeds 2 --set eval_every=2"
    )


def study_of_translators(data: Path) -> str:
    pairs = write_npz(data / "pairs.npz", small_pairs())
    return (
        f"study studies/translators --set data.source={pairs} --set epochs=2 --seeds 2 --set settings=2 --set hidden=8 "
        "--set sampler.batch=32"
    )


def study_of_encoders(data: Path) -> str:
    variants = {
        "layer": {"freeze_base": True, "learning_rate": 3e-2},
        "all": {"out_dim": None, "learning_rate": 1e-9, "negatives": {"per_query": 1, "depth": 5}},
    }
    return f"study {encoder_study(data, toy_keys(data) | {'epochs': 1}, variants)} --seeds 2"


COMMANDS: dict[str, Callable[[Path], str]] = {
    "retrieve": retrieve,
    "label": label,
    "study of heads": study_of_heads,
    "study of translators": study_of_translators,
    "study of encoders": study_of_encoders,
    "study of losses": lambda data: f"study {loss_study(data, grid={'learning_rate': [1e-3]})}",
    "analyze": lambda _: "analyze --iterations 50",
}
"""Each writes what a command reads into a folder, and returns its command line."""


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


@pytest.mark.parametrize("job", ["retrieve", "label", "study of heads", "analyze"], indirect=True)
def test_killed_between_two_files_it_goes_on_and_ends_the_same(job: Job) -> None:
    killed = job.folder / "killed"
    for share in (0.3, 0.8):
        assert run(job.line, killed, kill_at=int(share * job.files))[0] is None or share > 0.3
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
    plain = tiny_experiment_dict(tmp_path) | {"seeds": [0]}
    del plain["arms"]["emb_only_r8"]
    plain["training"] |= {"steps": 2, "save_every": 1}
    plain["evaluation"]["bundled"]["queries"] = 3
    write_plain(tmp_path / "tiny.yaml", plain)
    shared = ("--config", tmp_path / "tiny.yaml")
    successful(call_script("run_experiment.py", *shared, "--threads", "1", "--output-dir", tmp_path / "alone"))
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    successful(call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together"))
    assert_same_results(tmp_path / "alone", tmp_path / "together")
    manifest = json.loads((tmp_path / "together" / "joint_r8" / "seed_0" / "checkpoint" / "unimoe.json").read_text())
    assert manifest["config"]["output_dir"] == str(tmp_path / "together")
    again = successful(call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together"))
    assert again.stderr.count("already done") == 9

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
    assert_refused(done, 2, "a model behind a server is asked by one process; leave --engine out")


def shards(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "zero_shot" / "seed_none" / "shards").rglob("*.json"))


def test_no_score_is_lost_in_later_shards_or_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_invented(tmp_path / "long", invented(documents=40, queries=5, name="long"))
    monkeypatch.setattr("unimoe.models.reranker.SHARD_CHARACTERS", 600)
    given = ("--zero-shot", "--config", write_tiny_experiment(tmp_path), "--dataset", "long", "--task", "reranking")
    rerank_ids, scored, deadly = UnimodelForExp1.rerank_ids, 0, 0

    def counted(self: UnimodelForExp1, sequences: list[list[int]], **options: Any) -> Any:
        nonlocal scored
        scored += 1
        if scored == deadly:
            raise KilledError
        return rerank_ids(self, sequences, **options)

    def dies(folder: Path, result: EvalResult, detail: DrillDown) -> Path:
        if result.config_name == "zero_shot":
            raise KilledError
        return write_result(folder, result, detail)

    def evaluate(place: str, *more: str) -> Path:
        output_dir = tmp_path / place
        successful(call_script("evaluate.py", *given, "--output-dir", output_dir, *more, UNIMOE_DATA=str(tmp_path)))
        return output_dir

    monkeypatch.setattr(UnimodelForExp1, "rerank_ids", counted)
    undisturbed, one = evaluate("undisturbed"), tmp_path / "one"
    every, deadly = scored, scored + 4
    with pytest.raises(KilledError):
        evaluate("one")
    assert len(shards(one)) == 3 < every
    with monkeypatch.context() as patch:
        patch.setattr("unimoe.evaluation.store.write_result", dies)
        with pytest.raises(KilledError):
            evaluate("one")
    assert (one / "zero_shot/seed_none/runs/reranking/long.trec").is_file()
    assert (scored, len(shards(one))) == (2 * every + 1, every)
    other = shutil.copytree(one, tmp_path / "other")
    shards(one)[3].write_text("{", encoding="utf-8")
    evaluate("one")
    assert scored == 2 * every + 2
    assert written(one) == written(undisturbed)
    # Shards of another prompt are not met, and end with its result.
    evaluate("other", "--set", "prompt.instruction=Think.")
    assert scored == 3 * every + 2
    assert shards(one) == shards(other) == []


QUERIES = 36  # so many that some are left where a busy machine takes long to start a worker again

# A reranker whose answers take time, and that notes in a file what it was asked.
FUNCTION = """
import os, time
from pathlib import Path

def score(pairs):
    time.sleep(.6)
    query = pairs[0][0]
    with open(Path(__file__).with_name("asked.txt"), "a") as file:
        file.write(f"{query}|{os.getpid()}" + chr(10))
    return [float(len(document) % 7) for _, document in pairs]

score.identity = "one"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the function, whose workers and drivers have a cache of their own."""
    pytest.importorskip("ray", reason="needs unimoe[cluster]")
    (tmp_path / "slow_scores.py").write_text(FUNCTION)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPTS.with_name("src")), str(tmp_path)]))
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(home: Path) -> Iterator[Any]:
    """A cluster whose head computes nothing."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    found = Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)


def arguments(home: Path, *collections: str, outputs: str = "together") -> list[str]:
    named = ",".join(collections)
    return ["--model", "python:slow_scores:score", "--dataset", named, "--output-dir", str(home / outputs)]


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> None:
    """Wait for a script, which must end well."""
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr


def asked(home: Path) -> list[list[str]]:
    """The queries that workers have scored, each with the process that did."""
    path = home / "asked.txt"
    return [row.split("|") for row in path.read_text().splitlines()] if path.exists() else []


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
def test_an_experiment_trains_and_evaluates_as_in_one_process(home: Path) -> None:
    shared = ["--config", str(write_tiny_experiment(home)), "--set", "seeds=[0]"]
    successful(call_script("run_experiment.py", *shared, "--threads", "1", "--output-dir", home / "alone"))
    engine = ("--engine", "ray", "--workers", "2", "--store", str(home / "store"))
    end(start("run_experiment.py", *shared, "--output-dir", str(home / "together"), *engine))
    assert_same_results(home / "alone", home / "together")


@pytest.mark.slow
def test_a_killed_worker_a_lost_machine_and_a_killed_driver_cost_what_was_under_way(cluster: Any, home: Path) -> None:
    collections = [invented(documents=6, queries=QUERIES, name=name) for name in ("one", "other")]
    names = [f"path:{write_invented(home / collection.name, collection)}" for collection in collections]
    on = ("--engine", "ray", "--address", cluster.address, "--store", str(home / "store"), "--workers")
    nodes = [add_node(cluster), add_node(cluster)]
    driver = start("evaluate.py", *arguments(home, *names), *on, "2")
    wait_until(lambda: len(asked(home)) >= 2)
    killed = int(asked(home)[-1][1])
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len({process for _, process in asked(home)}) >= 3)  # Ray has started another
    cluster.remove_node(nodes[0], allow_graceful=False)
    before = len(asked(home))
    wait_until(lambda: len(asked(home)) >= before + 3)  # the machine that is left goes on alone
    add_node(cluster)
    wait_until(lambda: len(asked(home)) >= before + 6)
    assert driver.poll() is None, "it has finished before it could be killed"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = len(asked(home))
    end(start("evaluate.py", *arguments(home, *names), *on, "1"))
    # The process and the machine lost one unit each, the driver at most two; what was finished was not asked again.
    assert before < len(asked(home)) <= 2 * QUERIES + 4
    successful(call_script("evaluate.py", *arguments(home, *names, outputs="alone")))
    assert_same_results(home / "alone", home / "together")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "2"], "--workers belongs to --engine ray"),
        (["--engine", "rya"], "--engine rya: unknown (did you mean 'ray'?); use local or ray"),
        (["--allow-devices"], "--allow-devices belongs to --engine ray"),
        (["--engine", "ray", "--store", "nowhere://x"], "--store nowhere://x: no client for such a store"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: no Ray cluster answers"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(home: Path, options: list[str], words: str) -> None:
    assert_refused(call_script("evaluate.py", *arguments(home, "path:nowhere"), *options), 2, words)
