"""Ray clusters of one machine: results of one process to the bit, whoever dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.evaluations import assert_same_results
from support.experiments import write_tiny_experiment
from support.reranking import write_invented
from support.scripts import SCRIPTS, assert_refused, call_script, successful

from unimoe.data.collection import Collection, Document

ray = pytest.importorskip("ray", reason="needs unimoe[cluster]")
SOURCE = str(Path(__file__).parents[2] / "src")
QUERIES, DOCUMENTS = 24, 6

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


def write_collection(folder: Path, name: str) -> str:
    """A collection in BEIR layout."""
    documents = {f"d{n}": Document("", f"stone river {'wood ' * n}{name}") for n in range(DOCUMENTS)}
    queries = {f"q{n}": f"stone river {n}" for n in range(QUERIES)}
    qrels = {f"q{n}": {f"d{n % DOCUMENTS}": 1} for n in range(QUERIES)}
    write_invented(folder / name, Collection(name, "test", documents, queries, qrels))
    return f"path:{folder / name}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the function, whose workers and drivers have a cache of their own."""
    (tmp_path / "slow_scores.py").write_text(FUNCTION)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, str(tmp_path)]))
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


def on(cluster: Any, home: Path, workers: int = 2) -> list[str]:
    store = str(home / "store")
    return ["--engine", "ray", "--address", cluster.address, "--workers", str(workers), "--store", store]


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
    store = str(home / "store")
    engine = ("--engine", "ray", "--workers", "2", "--store", store)
    end(start("run_experiment.py", *shared, "--output-dir", str(home / "together"), *engine))
    assert_same_results(home / "alone", home / "together")
    # Each checkpoint again, by a pattern, into another folder: every unit is in the store.
    pattern = str(home / "together" / "*" / "seed_*" / "checkpoint")
    given = ("--checkpoint", pattern, "--eval-tier", "bundled", "--output-dir", str(home / "again"))
    end(start("evaluate.py", *given, "--engine", "ray", "--workers", "1", "--store", store))
    boards = [json.loads(path.read_text()) for path in (home / "store" / "drivers").iterdir()]
    last = max(boards, key=lambda board: board["started"])
    assert sum(line["done"] for line in last["lines"]) > 50
    assert [line["found"] for line in last["lines"]] == [line["done"] for line in last["lines"]]


@pytest.mark.slow
def test_a_killed_worker_a_lost_machine_and_a_killed_driver_cost_what_was_under_way(cluster: Any, home: Path) -> None:
    one, other = (write_collection(home, name) for name in ("one", "other"))
    command = [*arguments(home, one, other), *on(cluster, home)]
    nodes = [add_node(cluster), add_node(cluster)]
    driver = start("evaluate.py", *command)
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
    end(start("evaluate.py", *arguments(home, one, other), *on(cluster, home, workers=1)))
    # The process and the machine lost one unit each, the driver at most two; what was finished was not asked again.
    assert before < len(asked(home)) <= 2 * QUERIES + 4
    successful(call_script("evaluate.py", *arguments(home, one, other, outputs="alone")))
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
