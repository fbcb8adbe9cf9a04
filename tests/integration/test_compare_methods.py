"""The comparison of methods as its commands run it, on a tiny collection with the bundled encoder."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engine import ThreadActors
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful

from unimoe.analysis.gates.definitions import load_gates
from unimoe.results import read_drilldown, read_result, result_path
from unimoe.results.folder import load_all_results

METHODS = "zero_shot,infonce,eggroll,eggroll_soft_labels"
SMALL = ("--set", "population_size=16", "--set", "eval_every=4", "--set", "batch_size=12", "--set", "pools.depth=20")
FAST = ("--num_steps", "8", "--settings", "2", "--seeds", "2", "--device", "cpu", *SMALL)


@dataclass(frozen=True)
class Places:
    """Collection, output folder and cache, shared by the tests of this file."""

    topics: Path
    out: Path
    cache: Path

    def compare(self, *arguments: str, out: Path | None = None) -> Done:
        given: tuple[str | Path, ...] = (
            "--task",
            f"path:{self.topics}",
            "--output-dir",
            out or self.out,
            *FAST,
            *arguments,
        )
        return call_script("compare_methods.py", *given, UNIMOE_CACHE=str(self.cache))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    root = tmp_path_factory.mktemp("heads")
    return Places(topics_folder(root / "topics"), root / "out", root / "cache")


@pytest.fixture(scope="module")
def compared(places: Places) -> Done:
    """How the script ended."""
    return successful(places.compare("--methods", METHODS))


def test_table_and_verdict_are_printed_and_written(places: Places, compared: Done) -> None:
    assert "already done" not in compared.stderr
    assert all(name in compared.stdout for name in (*METHODS.split(","), "eggroll-beats-infonce"))
    with (places.out / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        passes = {row["arm"]: row["passes"] for row in csv.DictReader(lines) if row["passes"]}
    # Eight steps of 16 perturbed heads are 128 forward passes, those of a gradient 8.
    assert passes == {"zero_shot": "0", "infonce": "8", "eggroll": "128", "eggroll_soft_labels": "128"}
    assert {".tex", ".md"} <= {path.suffix for path in (places.out / "analysis").glob("arms.*")}


def test_every_arm_is_an_ordinary_result_and_the_gate_is_older(places: Places, compared: Done) -> None:
    results, gates = load_all_results(places.out), load_gates(places.out / "gates.yaml")
    assert gates.registered is not None
    assert all(gates.registered.isoformat() <= result.provenance.created for result in results.everything)
    assert gates.gates["eggroll-beats-infonce"].arms == ("eggroll", "infonce")
    assert set(results) == {"bm25", *METHODS.split(",")}
    key = f"reranking/{places.topics.name}"
    assert (results.seeds("infonce", key), results.seeds("zero_shot", key)) == ((0, 1), ())
    path = result_path(places.out, "eggroll", 1, "reranking", places.topics.name)
    result = read_result(path)
    identity, training = result.identity, result.training
    assert (identity.checkpoint, identity.split, identity.depth) == ("best", "test", 20)
    assert "minilm" in str(identity.base_model).lower()
    assert training is not None
    assert (training.steps, training.ranking_examples) == (8, 96)
    assert set(result.provenance.hashes) == {"collection", "candidates", "base_model", "prompt", "checkpoint"}
    assert set(read_drilldown(path).queries) == set(result.per_query)


def test_a_head_is_trained_by_a_file(places: Places, tmp_path: Path) -> None:
    file, task = tmp_path / "head.yaml", f"path:{places.topics}"
    lines = ["method: pg_rank", f"task: {task}", "num_steps: 300", f"output_dir: {tmp_path / 'out'}"]
    file.write_text("\n".join(lines), encoding="utf-8")
    given = ("train-head", "--config", file, "--num-steps", "3", "--device", "cpu", *SMALL)
    done = successful(call_unimoe(*given, UNIMOE_CACHE=str(places.cache)))
    assert (tmp_path / "out" / "pg_rank" / "seed_0" / "checkpoint").is_dir()
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["val/ndcg@10", "train/ndcg@10", "head"]
    tested = call_unimoe(*given, "--test", UNIMOE_CACHE=str(places.cache))
    assert "test/ndcg@10" in tested.stdout, "test scores are shown where they are asked for"
    assert set(done.stdout.splitlines()) < set(tested.stdout.splitlines())
    file.write_text("metod: eggroll", encoding="utf-8")
    assert_refused(call_unimoe("train-head", "--config", file), 2, "head.yaml", "metod", "did you mean 'method'?")


@pytest.mark.usefixtures("one_thread")
def test_workers_make_the_same_grid_and_front(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, store, *_: ThreadActors(store, 2))
    grid = {"sigma": [0.1, 0.3], "population_size": [4, 8], "learning_rate": [1e-3], "head_output_size": [8]}
    small = ("--methods", "eggroll", "--set", f"arms.eggroll.grid={json.dumps(grid)}", "--settings", "9")
    for part, table, more in (("grid", "settings", small), ("pareto", "pareto", ())):
        alone = successful(places.compare(part, *more, "--threads", "1", out=tmp_path / "alone"))
        cluster = ("--threads", "1", "--engine", "ray", "--store", str(tmp_path / "store"))
        together = successful(places.compare(part, *more, *cluster, out=tmp_path / "together"))
        assert "trainings by workers: 4:" in together.stderr
        ours, theirs = ((tmp_path / name / "analysis" / f"{table}.md").read_text() for name in ("alone", "together"))
        times = re.compile(r"[\d.]+ \|$", re.M) if part == "grid" else re.compile("$^")
        assert times.sub("", theirs) == times.sub("", ours)
        assert len(alone.stdout.splitlines()) == len(together.stdout.splitlines())
        assert (tmp_path / "together" / "analysis" / f"{part}.png").exists()
    rows = [line.split("|")[1:-1] for line in ours.splitlines() if line.startswith("|")][2:]
    points = [(float(row[1]), float(row[2]), row[3].strip()) for row in rows]
    front = [point for point in points if point[2] == "yes"]
    assert len(points) == 4
    assert all(any(f[0] >= p[0] and f[1] >= p[1] for f in front) for p in points)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "scifakt"), ("unknown collection", "scifact")),
        (("--methods", "infonse"), ("unknown arm 'infonse'", "infonce")),
        (("--set", "sigmma=1"), ("sigmma", "did you mean 'sigma'?")),
        (("--set", "population_size=7"), ("population_size 7 is odd",)),
        (("--margin", "-1"), ("eggroll-beats-infonce.margin", "at least 0")),
        (("--methods", "eggroll,hybrid", "--num_steps", "1"), ("arms.hybrid", "handoff 1 must be below num_steps 1")),
        (("pareto", "--methods", "infonce,zero_shot"), ("pareto: shows eggroll", "--methods")),
        (("--device", "tpu"), ("device",)),
    ],
)
def test_bad_input_is_one_line(
    places: Places, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(places.compare(*arguments, out=tmp_path), 2, *words)
    assert not [*tmp_path.rglob("*.json")]


def test_korean_from_its_folder_says_what_the_encoder_is_not(tmp_path: Path) -> None:
    topics_folder(tmp_path / "belebele-ko")
    options = ("--methods", "zero_shot,infonce", *FAST, "--num_steps", "2", "--seeds", "1", "--settings", "1")
    here = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    done = successful(call_script("compare_korean.py", "--offline", *options, "--output-dir", tmp_path / "out", **here))
    assert "made for English, and the texts are Korean" in done.stderr
    assert {"bm25", "zero_shot", "infonce"} >= set(load_all_results(tmp_path / "out")) >= {"zero_shot", "infonce"}


def test_korean_without_its_folder_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path)}
    done = call_script("compare_korean.py", "--offline", "--output-dir", tmp_path, **nowhere)
    assert_refused(done, 2, "belebele-ko")
