"""``unimoe compare`` of models by name, with each other, with run files and with results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_unimoe
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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    write_invented(folder / "toy", invented(documents=15, queries=8))
    write_invented(folder / "other", invented(documents=15, queries=7))
    save_tiny_cross_encoder(folder / "ce")
    (folder / "my_compared.py").write_text(FUNCTIONS, "utf-8")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)


def compare(data: Path, *arguments: str) -> Done:
    exact = () if "--models-dir" not in arguments else ("--set", "model.dtype=float32")
    own = {"UNIMOE_DATA": str(data), "UNIMOE_CACHE": str(data / "cache")}
    return call_unimoe("compare", *arguments, *exact, **own)


def found(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_models_are_evaluated_once_and_compared(data: Path, tmp_path: Path) -> None:
    models = ["--baseline", "bm25", "--systems", "cross-encoder:ce", "mine=python:my_compared:lengths"]
    asked = [*models, "--dataset", "toy", "other", "--models-dir", str(tmp_path), "--json"]
    first = found(compare(data, *asked))
    again = compare(data, *asked)
    assert found(again) == first
    assert "already done" in again.stderr
    assert {row["system"] for row in first["scores"]} == {"bm25", "ce", "mine"}
    assert {row["dataset"] for row in first["scores"]} == {"toy", "other"}
    for row in first["scores"]:
        place = {"bm25": "cross-encoder-ce", "ce": "cross-encoder-ce", "mine": "python-my_compared-lengths"}[
            row["system"]
        ]
        arm = "lengths" if row["system"] == "mine" else row["system"]
        run = tmp_path / place / arm / "seed_none/runs/reranking" / f"{row['dataset']}.trec"
        scores = score_run_file(run, tmp_path / place / "qrels" / f"{row['dataset']}-test.qrels", ["ndcg@10"])
        assert row["mean"] == pytest.approx(scores.aggregate["ndcg@10"])


def test_a_model_is_compared_with_a_run_file_and_with_results(data: Path, tmp_path: Path) -> None:
    place = ["--dataset", "toy", "--models-dir", str(tmp_path), "--json"]
    compare(data, "--systems", "python:my_compared:lengths", "python:my_compared:short", *place)
    folder = tmp_path / "python-my_compared-lengths"
    run = folder / "lengths/seed_none/runs/reranking/toy.trec"
    result = folder / "lengths/seed_none/results/reranking/toy.json"
    mixed = ["--systems", "python:my_compared:short", f"stored={folder}", f"run={run}", f"result={result}"]
    parsed = found(compare(data, *mixed, *place, "--allow", "duplicates"))
    means = {row["system"]: row["mean"] for row in parsed["scores"]}
    assert means["stored"] == means["run"] == means["result"] != means["short"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["python:my_compared:lengths"], 2, "only python:my_compared:lengths to compare; give two systems or more"),
        (["python:my_compared:lengths", "empty"], 3, "empty: holds neither reranking results nor a model"),
        (["python:my_compared:lengths", "crossencoder:ce"], 2, "no kind of model 'crossencoder'"),
        (["python:my_compared:lengths", "python:my_compared:lengths"], 2, "two systems are named 'lengths'"),
        (["python:my_compared:short", "a/b"], 3, "--systems a/b: no such run file or folder; write yes-no:a/b if it"),
        (["python:my_compared:lengths", "first_stage"], 3, "first_stage: no results at "),
        (["python:my_compared:lengths", "ce", "--qrels", "q.tsv"], 2, "models are evaluated on collections"),
    ],
)
def test_a_mistake_is_one_line(data: Path, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    place = ["--dataset", "toy", "--models-dir", str(tmp_path)]
    assert_refused(compare(data, "--systems", *arguments, *place), code, words)


def test_results_of_other_data_are_not_compared(data: Path, tmp_path: Path) -> None:
    place = ["--dataset", "toy", "--models-dir", str(tmp_path)]
    some = ["--systems", "python:my_compared:lengths", "python:my_compared:short", "--max-queries", "3"]
    assert compare(data, *some, *place).returncode == 0
    mixed = ["--systems", str(tmp_path / "python-my_compared-lengths"), "cross-encoder:ce"]
    assert_refused(compare(data, *mixed, *place), 3, "max_queries differs: 3 in lengths; None in ce")


def test_another_evaluation_in_the_models_folder_is_refused_with_the_option_that_helps(
    data: Path, tmp_path: Path
) -> None:
    asked = ["--systems", "python:my_compared:lengths", "python:my_compared:short", "--dataset", "toy"]
    place = ["--models-dir", str(tmp_path)]
    assert compare(data, *asked, *place, "--max-queries", "3").returncode == 0
    assert_refused(compare(data, *asked, *place), 3, "max_queries 3 there, None here", "choose another --models-dir")


def test_options_of_models_belong_to_models(data: Path, tmp_path: Path) -> None:
    done = compare(data, "--systems", "a.trec", "b.trec", "--qrels", "q.tsv", "--max-queries", "3")
    assert_refused(done, 2, "--max-queries is for models by name, and there are none; leave it out")
    judged = tmp_path / "q.tsv"
    judged.write_text("q1 0 d1 1\n", "utf-8")
    done = compare(data, "--systems", "cross-encoder:ce", "a.trec", "--dataset", f"toy={judged}")
    assert_refused(done, 2, "models are evaluated on collections, which have their judgments; name one, such as")
