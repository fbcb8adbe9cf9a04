"""``unimoe compare`` and ``unimoe parity`` of models by name, with each other, with run files and with results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.tiny_models import save_tiny_cross_encoder
from support.toy_collections import invented, write_invented

from unimoe.data.catalog import load_collection
from unimoe.formats.runs import read_run
from unimoe.models.seen_queries import SeenQueries
from unimoe.results.runs.scoring import score_run_file

pytestmark = pytest.mark.usefixtures("one_thread")

FUNCTIONS = """
def lengths(pairs):
    return [float(len(document)) for query, document in pairs]
lengths.identity = "lengths"

def short(pairs):
    return [-score for score in lengths(pairs)]
short.identity = "short"

def almost(pairs):
    return [score + 0.0005 for score in lengths(pairs)]
almost.identity = "almost"

def cosines(pairs):
    return [0.7 + score / 1e6 for score in lengths(pairs)]

def stirred(pairs):
    return [score + 0.0009 * (sum(map(ord, pair[1])) % 2) for pair, score in zip(pairs, cosines(pairs))]
"""
LENGTHS, SHORT = "python:my_compared:lengths", "python:my_compared:short"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    for name, documents, queries in (("toy", 15, 8), ("other", 15, 7), ("more", 9, 4)):
        write_invented(folder / name, invented(documents=documents, queries=queries))
    save_tiny_cross_encoder(folder / "ce")
    (folder / "my_compared.py").write_text(FUNCTIONS, "utf-8")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setenv("UNIMOE_DATA", str(data))
    monkeypatch.setenv("UNIMOE_CACHE", str(data / "cache"))


def compare(folder: Path, *systems: str, data: tuple[str, ...] = ("toy",), more: tuple[str, ...] = ()) -> Done:
    """Compare systems on collections; results of models go to ``folder``."""
    place = ("--models-dir", folder, "--set", "model.dtype=float32")
    return call_unimoe("compare", "--systems", *systems, "--dataset", *data, *place, *more)


def found(done: Done) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(successful(done).stdout)
    return parsed


def test_models_are_evaluated_once_and_compared(data: Path, tmp_path: Path) -> None:
    models = ("cross-encoder:ce", f"mine={LENGTHS}")
    asked: dict[str, Any] = {"data": ("toy", "other"), "more": ("--baseline", "bm25", "--json")}
    first = found(compare(tmp_path, *models, **asked))
    assert {run["seed"] for run in first["runs"]} == {None}  # a model by name is no draw of many trainings
    again = compare(tmp_path, *models, **asked)
    assert found(again) == first
    assert "already done" in again.stderr
    arms = {"bm25": "cross-encoder-ce/bm25", "ce": "cross-encoder-ce/ce", "mine": "python-my_compared-lengths/lengths"}
    assert {(row["system"], row["dataset"]) for row in first["scores"]} == {(a, d) for a in arms for d in asked["data"]}
    for row in first["scores"]:
        arm = tmp_path / arms[row["system"]]
        run = arm / "seed_none/runs/reranking" / f"{row['dataset']}.trec"
        scores = score_run_file(run, arm.parent / "qrels" / f"{row['dataset']}-test.qrels", ["ndcg@10"])
        assert row["mean"] == pytest.approx(scores.aggregate["ndcg@10"])


def test_a_model_is_compared_with_a_run_file_and_with_results(tmp_path: Path) -> None:
    successful(compare(tmp_path, LENGTHS, SHORT))
    folder = tmp_path / "python-my_compared-lengths"
    arm = folder / "lengths" / "seed_none"
    run, result = arm / "runs/reranking/toy.trec", arm / "results/reranking/toy.json"
    mixed = (SHORT, f"stored={folder}", f"run={run}", f"result={result}")
    parsed = found(compare(tmp_path, *mixed, more=("--allow", "duplicates", "--json")))
    means = {row["system"]: row["mean"] for row in parsed["scores"]}
    assert means["stored"] == means["run"] == means["result"] != means["short"]


def test_what_an_evaluation_said_of_a_model_travels_with_its_run(data: Path, tmp_path: Path) -> None:
    """A table of models, of their folders or of their runs lost why their scores decide nothing."""
    model = save_tiny_cross_encoder(tmp_path / "known")
    SeenQueries.of(load_collection("toy", "test").queries.values()).write(model)
    bare = (f"cross-encoder:{model}", LENGTHS)
    folder = tmp_path / "out"
    said = "known: these queries trained the checkpoint"
    assert found(compare(folder, *bare, more=("--json",)))["caveats"][0] == said
    place = next(folder.glob("*/known"))
    arm = place / "seed_none"
    run, qrels = arm / "runs/reranking/toy.trec", place.parent / "qrels/toy-test.qrels"
    for one in (place.parent, arm / "results/reranking/toy.json", run):
        assert found(compare(folder, f"mine={one}", LENGTHS, more=("--json",)))["caveats"][0] == f"mine{said[5:]}"
    tables = successful(compare(folder, f"mine={run}", LENGTHS)).stdout.split("\n\n")
    assert sum(f"Caveat: mine{said[5:]}" in " ".join(table.split()) for table in tables) >= 2, (
        "of scores, of differences"
    )
    assert "these queries trained the checkpoint" in successful(call_unimoe("evaluate-run", run, qrels)).stderr
    listed = successful(call_unimoe("compare", "--results", place.parent, "--baseline", "bm25", "--json"))
    assert said in found(listed)["caveats"], "what holds of one system of several names it"
    other = tmp_path / "copied.trec"
    other.write_text(run.read_text())
    assert said not in successful(call_unimoe("evaluate-run", other, qrels)).stderr


def test_what_holds_of_all_systems_is_said_once(tmp_path: Path) -> None:
    parsed = found(compare(tmp_path, LENGTHS, SHORT, more=("--max-queries", "3", "--json")))
    assert [line for line in parsed["caveats"] if "max-queries" in line] == ["--max-queries 3: 8 queries are judged"]


@pytest.mark.parametrize("content", ['{"name": "of another tool"}', "no JSON"])
def test_a_file_of_another_tool_in_the_place_of_a_result_is_none(data: Path, tmp_path: Path, content: str) -> None:
    run = tmp_path / "runs/x/toy.trec"
    run.parent.mkdir(parents=True)
    run.write_text("test00 Q0 d000 1 2.0 t\n")
    (tmp_path / "results/x").mkdir(parents=True)
    (tmp_path / "results/x/toy.json").write_text(content)
    (tmp_path / "q.tsv").write_text("test00 0 d000 1\n")
    assert "1.0000" in successful(call_unimoe("evaluate-run", run, tmp_path / "q.tsv")).stdout


@pytest.mark.parametrize(
    ("systems", "code", "words"),
    [
        ([LENGTHS], 2, f"only {LENGTHS} to compare; give two systems or more"),
        ([LENGTHS, "empty"], 3, "empty: holds neither reranking results nor a model"),
        ([LENGTHS, "crossencoder:ce"], 2, "no kind of model 'crossencoder'"),
        ([LENGTHS, LENGTHS], 2, f"only {LENGTHS} to compare"),
        ([SHORT, "a/b"], 3, "--systems a/b: no such run file or folder; write yes-no:a/b if it"),
        ([LENGTHS, "first_stage"], 3, "first_stage: no results at "),
        ([LENGTHS, "ce", "--qrels", "q.tsv"], 2, "models are evaluated on collections"),
        ([LENGTHS, "a.trec", "--dataset", "toy=my_compared.py"], 2, "models are evaluated on collections, which have"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, systems: list[str], code: int, words: str) -> None:
    assert_refused(compare(tmp_path, *systems), code, words)


def test_results_of_other_data_are_not_compared_nor_replaced(tmp_path: Path) -> None:
    successful(compare(tmp_path, LENGTHS, SHORT, more=("--max-queries", "3")))
    mixed = compare(tmp_path, str(tmp_path / "python-my_compared-lengths"), "cross-encoder:ce")
    assert_refused(mixed, 3, "max_queries differs: 3 in lengths; None in ce")
    whole = compare(tmp_path, LENGTHS, SHORT)
    assert_refused(whole, 3, "max_queries 3 there, None here", "choose another --models-dir")


ON_TOY = ("--dataset", "toy", "--set", "model.dtype=float32")


def parity(*arguments: str | Path) -> Done:
    return call_unimoe("parity", *arguments)


def test_models_are_evaluated_and_compared_and_their_results_kept(tmp_path: Path) -> None:
    names = [LENGTHS, "python:my_compared:almost"]
    done = successful(parity(*names, *ON_TOY, "--output-dir", tmp_path))
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("reranking/toy: lengths (python:my_compared:lengths@")
    assert "largest 0.0005 (query q" in done.stdout
    assert "Kendall's tau  mean 1.0000, lowest 1.0000" in done.stdout
    assert last == (
        "parity: no score differs by 0.001 of the scores' range or more, and the first ten documents change in 0 of 8 "
        "queries"
    )
    again = parity(*names, *ON_TOY, "--output-dir", tmp_path)
    assert again.stdout == done.stdout
    assert again.stderr.count("already done") == again.stderr.count("reranking toy") == 4
    stored = [tmp_path / name.replace(":", "-") for name in names]
    assert parity(*stored).stdout == done.stdout
    beyond = parity(*stored, "--tolerance", "0.000001")
    assert beyond.returncode == 10
    assert beyond.stdout.splitlines()[-1].startswith("no parity: scores differ by up to 0.0005, ")
    assert_refused(parity(*stored, "--max-queries", "3"), 2, "--max-queries is for models, and both sides are results")


def test_a_model_and_stored_results_and_a_dataset_of_one_side_alone(tmp_path: Path) -> None:
    wide = ("--dataset", "toy,path:more", "--set", "model.dtype=float32")
    successful(call_script("evaluate.py", "--model", "cross-encoder:ce", *wide, "--output-dir", tmp_path / "stored"))
    other = ("--dataset", "toy", "--set", "model.dtype=bfloat16", "--output-dir", tmp_path)
    done = parity(tmp_path / "stored", "cross-encoder:ce", *other, "--json")
    assert "not compared, since one side alone has it: reranking/more" in done.stderr
    found = json.loads(done.stdout)
    kept, low = (
        read_run(tmp_path / place / "ce/seed_none/runs/reranking/toy.trec") for place in ("stored", "cross-encoder-ce")
    )
    gaps = [abs(kept[query][document] - low[query][document]) for query in kept for document in kept[query]]
    (one,) = found["datasets"]
    assert found["largest"] == max(gaps) > 0
    assert (one["key"], one["pairs"], one["queries"]) == ("reranking/toy", len(gaps), 8)
    assert one["mean_difference"] == pytest.approx(sum(gaps) / len(gaps))
    assert done.returncode == (0 if found["within"] else 10)


def test_small_differences_of_cosines_that_change_rankings_are_no_parity(tmp_path: Path) -> None:
    asked = ("python:my_compared:cosines", "python:my_compared:stirred", *ON_TOY, "--output-dir", tmp_path)
    done = parity(*asked, "--json")
    found = json.loads(done.stdout)
    (one,) = found["datasets"]
    assert done.returncode == 10
    assert (found["largest"] < 1e-3, found["within"]) == (True, False)
    changed = f"the first ten documents change in {len(one['top_changed'])} of 8 queries (reranking/toy), tolerance"
    for ranking_tolerance, code, words in (("0.01", 10, changed), ("1", 0, "parity: no score")):
        done = parity(*asked, "--tolerance", "1", "--ranking-tolerance", ranking_tolerance)
        assert (done.returncode, words in done.stdout.splitlines()[-1]) == (code, True)


def test_what_parity_cannot_compare_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, code, words in (
        ("empty", 3, "empty: holds neither reranking results nor a model; run `unimoe eval"),
        ("encoder:ce", 2, "--task reranking: ce does embedding only"),
    ):
        assert_refused(parity(name, "cross-encoder:ce", *ON_TOY, "--output-dir", tmp_path), code, words)
