"""``unimoe parity``: models by name and stored results, exit codes, JSON and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.core.trec import read_run

pytestmark = pytest.mark.usefixtures("one_thread")
FUNCTIONS = """
def lengths(pairs):
    return [float(len(document)) for query, document in pairs]
lengths.identity = "lengths"

def almost(pairs):
    return [score + 0.0005 for score in lengths(pairs)]
almost.identity = "almost"

def cosines(pairs):
    return [0.7 + score / 1e6 for score in lengths(pairs)]

def stirred(pairs):
    return [score + 0.0009 * (sum(map(ord, pair[1])) % 2) for pair, score in zip(pairs, cosines(pairs))]
"""
ON_TOY = ("--dataset", "toy", "--set", "model.dtype=float32")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    write_invented(folder / "toy", invented(documents=15, queries=8))
    write_invented(folder / "more", invented(documents=9, queries=4))
    save_tiny_cross_encoder(folder / "ce")
    (folder / "my_parity.py").write_text(FUNCTIONS, "utf-8")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setenv("UNIMOE_DATA", str(data))
    monkeypatch.setenv("UNIMOE_CACHE", str(data / "cache"))


def parity(*arguments: str | Path) -> Done:
    return call_unimoe("parity", *arguments)


def test_models_are_evaluated_and_compared_and_their_results_kept(tmp_path: Path) -> None:
    names = ["python:my_parity:lengths", "python:my_parity:almost"]
    done = successful(parity(*names, *ON_TOY, "--output-dir", tmp_path))
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("reranking/toy: lengths (python:my_parity:lengths@")
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
    low = ("--dataset", "toy", "--set", "model.dtype=bfloat16", "--output-dir", tmp_path)
    done = parity(tmp_path / "stored", "cross-encoder:ce", *low, "--json")
    assert "not compared, since one side alone has it: reranking/more" in done.stderr
    found = json.loads(done.stdout)
    runs = [
        read_run(tmp_path / place / "ce/seed_none/runs/reranking/toy.trec") for place in ("stored", "cross-encoder-ce")
    ]
    gaps = [abs(runs[0][q][d] - runs[1][q][d]) for q in runs[0] for d in runs[0][q]]
    every = [[score for own in run.values() for score in own.values()] for run in runs]
    span = max(max(one) - min(one) for one in every)
    (one,) = found["datasets"]
    assert found["largest"] == max(gaps) > 0
    assert one["relative_difference"] == pytest.approx(max(gaps) / span)
    assert found["within"] is (max(gaps) / span < 1e-3 and not one["top_changed"])
    assert done.returncode == (0 if found["within"] else 10)
    assert (one["key"], one["pairs"], one["queries"]) == ("reranking/toy", len(gaps), 8)
    assert one["mean_difference"] == pytest.approx(sum(gaps) / len(gaps))


def test_small_differences_of_cosines_that_change_rankings_are_no_parity(tmp_path: Path) -> None:
    asked = ("python:my_parity:cosines", "python:my_parity:stirred", *ON_TOY, "--output-dir", tmp_path)
    done = parity(*asked, "--json")
    found = json.loads(done.stdout)
    (one,) = found["datasets"]
    assert done.returncode == 10
    assert (found["largest"] < 1e-3, found["within"]) == (True, False)
    changed = f"the first ten documents change in {len(one['top_changed'])} of 8 queries (reranking/toy), tolerance"
    for ranking_tolerance, code, words in (("0.01", 10, changed), ("1", 0, "parity: no score")):
        done = parity(*asked, "--tolerance", "1", "--ranking-tolerance", ranking_tolerance)
        assert (done.returncode, words in done.stdout.splitlines()[-1]) == (code, True)


class TestBadInput:
    @pytest.mark.parametrize(
        ("names", "code", "words"),
        [
            (["empty", "cross-encoder:ce"], 3, "empty: holds neither reranking results nor a model; run `unimoe eval"),
            (["./nowhere", "cross-encoder:ce"], 3, "'./nowhere': no such folder"),
            (["encoder:ce", "cross-encoder:ce"], 2, "--task reranking: ce does embedding only"),
        ],
    )
    def test_it_is_one_line(self, tmp_path: Path, names: list[str], code: int, words: str) -> None:
        assert_refused(parity(*names, *ON_TOY, "--output-dir", tmp_path), code, words)

    def test_a_second_model_without_its_key_is_refused_before_the_first_scores(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("NOWHERE_KEY", raising=False)
        served = ("served.api=tei", "served.model=m", "served.key_variable=NOWHERE_KEY")
        sets = [word for setting in served for word in ("--set", setting)]
        names = ("python:my_parity:lengths", "http://127.0.0.1:9")
        done = parity(*names, *ON_TOY, *sets, "--output-dir", tmp_path / "out")
        assert_refused(done, 2, "the environment variable NOWHERE_KEY is not set")
        assert not (tmp_path / "out").exists()
