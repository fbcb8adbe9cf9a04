"""Where candidates come from: the two BM25 engines, MS MARCO's unordered candidates, run files; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.sources import SMALL, write_msmarco

from unimoe.config import BM25Config, EvaluationConfig
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import hash_file
from unimoe.core.trec import head, write_run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.retrieval.bm25 import Engine, bm25_run, first_stage_name
from unimoe.retrieval.first_stage import Candidates, FirstStage

PARAMS = BM25Config()
TEXTS = {"a": "red fox", "b": "red", "c": "blue whale", "d": "whale", "e": "owl", "q1": "red fox"}
TOY = assemble(
    "toy",
    "test",
    [(key, Document("", text)) for key, text in TEXTS.items()],
    [("q1", "red fox"), ("q2", "whale"), ("q3", "zebra"), ("q4", "owl")],
    {"q1": {"a": 1}, "q2": {"d": 1}, "q3": {"e": 1}},
)
FOUND = {"q1": {"a": 3.0, "q1": 2.0, "b": 1.0}, "q2": {"d": 0.5, "c": 0.25}, "q3": {"e": 0.1}}


@pytest.fixture(autouse=True)
def _cache(tmp_cache: Path) -> None:
    """No run of another test is served."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.trec"
    write_run(path, FOUND, "someone")
    return path


def stage(setting: str, depth: int = 10, *, dataset: str = "toy", exclude_self: bool = False) -> FirstStage:
    settings = EvaluationConfig(first_stage=setting, depth=depth, bm25=PARAMS)
    return FirstStage(settings, dataset, exclude_self)


def find(setting: str, depth: int = 10, collection: Collection = TOY, *, exclude_self: bool = False) -> Candidates:
    return stage(setting, depth, exclude_self=exclude_self).candidates(collection, collection)


class TestSetting:
    @pytest.mark.parametrize(
        ("setting", "close"),
        [
            ("bm25", " (did you mean 'bm25s'?)"),
            ("runs/x.trec", ""),
            ("run: ", ""),
            ("", ""),
        ],
    )
    def test_anything_else_is_refused_with_what_there_is(self, setting: str, close: str) -> None:
        with pytest.raises(ValueError, match="first_stage") as caught:
            EvaluationConfig(first_stage=setting)
        known = "bm25s, rank_bm25, dense, sparse, late, fusion, official or run:PATH"
        assert f"there is no first stage {setting!r}{close}; write {known}" in str(caught.value)


class TestBM25:
    @pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
    def test_gives_its_ranking_and_names_itself(self, engine: Engine) -> None:
        found = find(engine)
        assert found == Candidates(
            first_stage_name(PARAMS, engine), bm25_run(TOY, 100, PARAMS, engine=engine), ordered=True
        )
        assert found.run["q3"] == {}

        stage(engine).refuse_impossible(TOY)
        with pytest.raises(UsageError, match=f"so {engine} would search what was found already; set evaluation.first"):
            stage(engine).refuse_impossible(replace(TOY, candidates_only=True))

    def test_finds_a_hundred_for_recall_however_few_are_reranked(self) -> None:
        documents = [(f"d{i:03}", Document("", "red")) for i in range(1200)]
        many = assemble("many", "test", documents, [("q", "red")], {"q": {"d000": 1}})
        sizes = [len(find("bm25s", depth, many).run["q"]) for depth in (1, 100, 1000, 2000)]
        assert sizes == [100, 100, 1000, 1200]


class TestRunFile:
    def test_is_taken_without_self_matches_and_named_by_its_content(self, file: Path, tmp_path: Path) -> None:
        found = find(f"run:{file}")
        assert found == Candidates(f"run:toy.trec@{hash_file(file)}", {**FOUND, "q4": {}}, ordered=True)
        assert [list(found.run[key]) for key in FOUND] == [["a", "q1", "b"], ["d", "c"], ["e"]]
        write_run(file, {**FOUND, "q1": {"q1": 9.0} | {"a": 1.0, "b": 1.0}}, "x")
        assert list(find(f"run:{file}", 2, exclude_self=True).run["q1"]) == ["b", "a"]
        write_run(tmp_path / "cqadupstack-tex.trec", FOUND, "x")  # as result files are named
        tex = stage(f"run:{tmp_path}/{{dataset}}.trec", dataset="cqadupstack/tex")
        assert tex.candidates(TOY, TOY).run["q2"] == FOUND["q2"]

    def test_is_cut_to_its_best_but_not_below_a_hundred(self, file: Path) -> None:
        scores = {f"d{i:03}": float(-i) for i in range(300)}
        documents = [(key, Document("", "x")) for key in scores]
        many = assemble("many", "test", documents, [("q", "x")], {"q": {"d000": 1}})
        write_run(file, {"q": scores}, "x")
        for depth, kept in ((3, 100), (100, 100), (250, 250), (1000, 300)):
            assert list(find(f"run:{file}", depth, many).run["q"].items()) == list(head(scores, kept).items())

    def test_without_any_order_is_taken_whole_and_said_to_be_unordered(self, file: Path) -> None:
        write_run(file, {key: dict.fromkeys(scores, 0.0) for key, scores in FOUND.items()}, "x")
        found = find(f"run:{file}", 3)
        assert not found.ordered
        assert {key: set(scores) for key, scores in found.run.items() if scores} == {
            k: set(v) for k, v in FOUND.items()
        }


TIED = {"a": 1.0, "b": 1.0 + 1e-9, "c": 1.0}  # equal in float32
REMEDY = "give a run of this collection and split, over all its queries"


class TestRefusedRunFile:
    @pytest.mark.parametrize(
        ("run", "words"),
        [
            (
                {**FOUND, "q2": {"d": 1.0, "D": 0.5}},
                "candidate 'D' of query 'q2' is no document of toy; give a run made on this corpus",
            ),
            (
                {key: FOUND[key] for key in ("q1", "q2")},
                f"no candidates for query 'q3', judged in toy, split test; {REMEDY}",
            ),
            (
                {"q2": FOUND["q2"]},
                f"no candidates for query 'q1' nor for 1 more, judged in toy, split test; {REMEDY}",
            ),
            (
                {**FOUND, "q1": TIED},
                "the 3 candidates of query 'q1' all have one score, so a depth of 2 would choose them by id; "
                "ask for a depth of at least 3, or give a ranked run",
            ),
        ],
    )
    def test_one_line_says_what_is_wrong(self, file: Path, run: dict[str, dict[str, float]], words: str) -> None:
        write_run(file, run, "x")
        with pytest.raises(DataError) as caught:
            find(f"run:{file}", 2)
        assert str(caught.value) == f"{file}: {words}"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        setting = f"run:{tmp_path}/{{dataset}}.trec"
        with pytest.raises(DataError, match=r"toy\.trec: no such run file; correct evaluation\.first_stage=run:"):
            stage(setting).refuse_impossible(TOY)


class TestOfficial:
    """MS MARCO's top1000.dev; the published files are made from a small collection."""

    @pytest.fixture
    def name(self, tmp_path: Path) -> str:
        return f"path:{write_msmarco(tmp_path / 'msmarco', SMALL)}"

    def test_is_taken_whole_and_is_no_ranking(self, name: str) -> None:
        official = stage("official", 1000, dataset=name)
        official.refuse_impossible(replace(SMALL, candidates_only=True))
        found = official.candidates(SMALL, SMALL)
        assert (found.source, found.ordered) == ("official(top1000.dev)", False)
        assert {key: set(scores.values()) for key, scores in found.run.items()} == {"101": {0.0}, "205": {0.0}}
        assert all(SMALL.qrels[key].keys() <= scores.keys() for key, scores in found.run.items())

    @pytest.mark.parametrize("dataset", ["apidocs", "scifact"])
    def test_is_refused_elsewhere(self, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("UNIMOE_DATA", raising=False)
        with pytest.raises(UnimoeError, match=f"{dataset}: evaluation.first_stage=official reads top1000.dev, which"):
            stage("official", dataset=dataset).refuse_impossible(TOY)
