"""The commands with ``--engine ray``, whose workers are threads here: files of one process to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.engine import ThreadActors
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import call_script
from support.tiny_encoders import save_tiny_encoder

import unimoe
from unimoe.results import read_result, result_files

pytestmark = pytest.mark.usefixtures("one_thread", "threads")


COMMAND = str(Path(unimoe.__file__).with_name("__main__.py"))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch, tmp_cache: Path) -> None:
    """Workers are threads."""
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, spec: ThreadActors(spec.store, 2))


def assert_equal(alone: Path, together: Path) -> None:
    """Both folders have the same results, runs and weights."""
    paths = result_files(alone)
    assert [path.relative_to(alone) for path in paths] == [
        path.relative_to(together) for path in result_files(together)
    ]
    for path in paths:
        own, other = read_result(path), read_result(together / path.relative_to(alone))
        assert (own.aggregate, own.per_query, own.per_query_metrics, own.identity, own.provenance.hashes) == (
            other.aggregate, other.per_query, other.per_query_metrics, other.identity, other.provenance.hashes
        ), path  # fmt: skip
    for pattern in ("*.trec", "*.safetensors", "adapter_config.json", "*.qrels"):
        for path in sorted(alone.rglob(pattern)):
            assert (together / path.relative_to(alone)).read_bytes() == path.read_bytes(), path


def test_an_experiment(tmp_path: Path) -> None:
    config = write_tiny_experiment(tmp_path)
    shared = ("--config", config, "--set", "seeds=[0]")
    assert (
        call_script("run_experiment.py", *shared, "--threads", "1", "--output-dir", tmp_path / "alone").returncode == 0
    )
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    done = call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together")
    assert done.returncode == 0, done.stderr
    assert_equal(tmp_path / "alone", tmp_path / "together")
    manifest = json.loads((tmp_path / "together" / "joint_r8" / "seed_0" / "checkpoint" / "unimoe.json").read_text())
    assert manifest["config"]["output_dir"] == str(tmp_path / "together")
    again = call_script("run_experiment.py", *shared, *cluster, "--output-dir", tmp_path / "together")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("already done") == 12

    # Several checkpoints by a pattern, into a folder of their own: all units are in the store.
    pattern = str(tmp_path / "together" / "*" / "seed_*" / "checkpoint")
    options = ("--checkpoint", pattern, "--eval-tier", "bundled", "--output-dir", tmp_path / "third")
    third = call_script("evaluate.py", *options, *cluster)
    assert third.returncode == 0, third.stderr
    boards = [json.loads(path.read_text()) for path in (tmp_path / "store" / "drivers").iterdir()]
    lines = max(boards, key=lambda board: board["started"])["lines"]
    assert [line["found"] for line in lines] == [line["done"] for line in lines]
    # The same without a cluster.
    fourth = call_script("evaluate.py", *options[:-1], tmp_path / "fourth", "--threads", "1")
    assert fourth.returncode == 0, fourth.stderr
    assert_equal(tmp_path / "fourth", tmp_path / "third")
    assert "joint_r8, seed 0:" in fourth.stdout


def test_retrieval(tmp_path: Path) -> None:
    write_invented(tmp_path / "set", invented(documents=30, queries=5, unjudged=1, name="set"))
    save_tiny_encoder(tmp_path / "encoder")
    options = ("--dataset", f"path:{tmp_path / 'set'}", "--encoder", tmp_path / "encoder", "--device", "cpu")
    alone = call_script(COMMAND, "retrieve", *options, "--output-dir", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    together = call_script(COMMAND, "retrieve", *options, "--output-dir", tmp_path / "together", *cluster)
    assert together.returncode == 0, together.stderr
    assert_equal(tmp_path / "alone", tmp_path / "together")
    assert list((tmp_path / "store" / "units").rglob("*"))


def test_a_server_is_asked_by_one_process(tmp_path: Path) -> None:
    write_invented(tmp_path / "set", invented(documents=3, queries=2, name="set"))
    asked = ("--model", "http://127.0.0.1:9/v1", "--set", "served.api=tei", "--set", "served.model=tiny")
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"), "--output-dir", tmp_path / "out")
    done = call_script("evaluate.py", *asked, "--dataset", f"path:{tmp_path / 'set'}", *cluster)
    assert done.returncode == 2, done.stderr
    assert "a model behind a server is asked by one process; leave --engine out" in done.stderr
