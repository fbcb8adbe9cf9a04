"""``unimoe compare`` of models by name, with each other, with run files and with results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_unimoe, successful
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.results.runs.scoring import score_run_file

pytestmark = pytest.mark.usefixtures("one_thread")

FUNCTIONS = """
def lengths(pairs):
    return [float(len(document)) for query, document in pairs]
lengths.identity = "lengths"

def short(pairs):
    return [-score for score in lengths(pairs)]
short.identity = "short"
"""
LENGTHS, SHORT = "python:my_compared:lengths", "python:my_compared:short"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    for name, queries in (("toy", 8), ("other", 7)):
        write_invented(folder / name, invented(documents=15, queries=queries))
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


@pytest.mark.parametrize(
    ("systems", "code", "words"),
    [
        ([LENGTHS], 2, f"only {LENGTHS} to compare; give two systems or more"),
        ([LENGTHS, "empty"], 3, "empty: holds neither reranking results nor a model"),
        ([LENGTHS, "crossencoder:ce"], 2, "no kind of model 'crossencoder'"),
        ([LENGTHS, LENGTHS], 2, "two systems are named 'lengths'"),
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
