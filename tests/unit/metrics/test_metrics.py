"""Names of metrics, what they score as ``trec_eval -c`` does, and the level from which a document is relevant."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
from support.experiments import tiny_experiment_dict
from support.results import make_result
from support.scripts import read_plain
from support.toy_collections import write_beir

from unimoe.config import DenseConfig, Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document
from unimoe.data.source import find_source
from unimoe.evaluation.datasets import Dataset, chosen_datasets, load_reporting
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.tasks.search import dense_collection, retrieval_metrics
from unimoe.metrics import canonical_metric, parse_metric, register_measure, score_run
from unimoe.metrics.scoring import dataset_group, from_grade, level_note, suite_averages
from unimoe.results import About


@pytest.mark.parametrize(
    ("name", "canonical", "cutoff", "binary"),
    [
        ("ndcg@10", "ndcg@10", 10, False),
        ("nDCG(dcg='log2')@10", "ndcg@10", 10, False),
        ("ndcg_cut_10", "ndcg@10", 10, False),
        ("ndcg", "ndcg", None, False),
        ("RR", "mrr", None, True),
        ("MRR@10", "mrr@10", 10, True),
        ("recip_rank", "mrr", None, True),
        ("AP", "map", None, True),
        ("map_cut_10", "map@10", 10, True),
        ("recall_100", "recall@100", 100, True),
        ("Precision@5", "p@5", 5, True),
        ("recall_of_retrieved@10", "recall_of_retrieved@10", 10, True),
        ("success_5", "Success@5", 5, True),
        ("success@1", "Success@1", 1, True),
        ("hit_rate@10", "Success@10", 10, True),
        ("accuracy_at_1", "Success@1", 1, True),
        ("ndcg_at_10", "ndcg@10", 10, False),
        ("precision_at_5", "p@5", 5, True),
        ("mrr_at_10", "mrr@10", 10, True),
        ("R_cap_at_10", "recall_cap@10", 10, True),
        ("iprec_at_recall_0.10", "IPrec@0.1", None, True),
        ("set_relative_P", "SetP(relative=True)", None, True),
        ("num_ret", "NumRet", None, False),
        ("num_rel_ret", "num_rel_ret", None, True),  # NumRelRet is of grade 1 on, whatever the level
        ("Accuracy@10", "Accuracy@10", 10, True),
        ("alpha-nDCG@20", "alpha_nDCG@20", 20, True),
        ("ERR-IA@20", "ERR_IA@20", 20, True),
        ("strec@10", "StRecall@10", 10, True),
        ("bpref", "Bpref", None, True),
        ("AP(rel=1)", "AP(rel=1)", None, False),  # map may mean another level
        ("RBP(p=0.9,rel=2)", "RBP(rel=2,p=0.9)", None, False),
        ("NumRet", "NumRet", None, False),  # means all documents, not those of some grade
        ("NumRelRet", "NumRet(rel=1)", None, False),
        ("IPrec@0.1", "IPrec@0.1", None, True),
        ("nDCG(gains={2: 1, 1: 0})@10", "nDCG(gains={1:0,2:1})@10", 10, False),
    ],
)
def test_one_name_for_every_metric(name: str, canonical: str, cutoff: int | None, binary: bool) -> None:
    assert (canonical_metric(name), parse_metric(name).cutoff, parse_metric(name).binary) == (canonical, cutoff, binary)
    assert canonical_metric(canonical) == canonical


def test_measures_of_ir_measures_score_a_run_alone_or_among_names() -> None:
    qrels, run = {"q": {"a": 1, "b": 2}}, {"q": {"a": 2.0, "b": 1.0}}
    both = score_run(qrels, run, [ir_measures.nDCG @ 10, ir_measures.RBP(rel=2), "nDCG@10"])
    assert both.aggregate == score_run(qrels, run, ["ndcg@10", "RBP(rel=2)"]).aggregate
    assert score_run(qrels, run, ir_measures.RBP(rel=2)).aggregate == {"RBP(rel=2)": pytest.approx(0.16)}


UNREADABLE = "its parameters cannot be read; write them as in RBP(rel=2,p=0.9)"
WHOLE = "will not do; it must be of type int from 1 to 9999999"
NOTHING = "nothing computes it as written; add a parameter, or leave one out"

REFUSED: list[tuple[Any, str]] = [
    ("ndgc_cut_10", "(did you mean 'ndcg_cut_10'?)"),
    ("ndcg@1٣", "(did you mean 'ndcg@10'?)"),
    ("recall", "(did you mean 'recall@10'?)"),
    ("hits@1", "unknown metric 'hits@1' (did you mean 'hit_rate@1'?); use"),
    ("hit_rte@5", "(did you mean 'hit_rate@5'?)"),
    ("set_recal", "(did you mean 'set_recall'?)"),
    ("ndgc_at_10", "(did you mean 'ndcg_at_10'?)"),
    ("gmmap", "(did you mean 'gm_map'?)"),
    ("alpha_ndcg@20", "(did you mean 'alpha_nDCG@20'?)"),
    ("err@20", "(did you mean 'ERR@20'?)"),
    ("rbp", "(did you mean 'RBP'?)"),
    ("RBP(p=0.5)", "rel is missing; write RBP(rel=1,p=0.5)"),
    ("ERR", "cutoff is missing; write ERR@10"),
    ("accuracy@1", "has two meanings: write Success@1 for a relevant document among the first 1, as sentence-tr"),
    ("alpha_nDCG(judged_only=True)@20", "judged_only is computed for no measure of subtopics; leave it out"),
    ('__import__("os")', "unknown metric '__import__(\"os\")'; use"),
    ("ndcg@99999999", "unknown metric 'ndcg@99999999'; use"),
    ("nDCG@99999999", f"cutoff=99999999 {WHOLE}"),
    ("nDCG@1.5", f"cutoff=1.5 {WHOLE}"),
    (ir_measures.P, "cutoff is missing; write P@10"),
    ("IPrec", "recall is missing; write IPrec@0.1"),
    ("IPrec@0.123", "recall=0.123 will not do; it must be of type float from 0 to 1, of two decimals at most"),
    ("AP(re=2)", "AP has no parameter 're' (did you mean 'rel'?); it has cutoff, rel, judged_only"),
    ("AP(rel=True)", f"rel=True {WHOLE}"),
    ("AP(2)", UNREADABLE),
    ("nDCG(gains={1:-1})", UNREADABLE),
    ("RBP", "rel is missing; write RBP(rel=1)"),
    ("NumRel(rel=2)", NOTHING),
    ("nDCG(dcg='x')", "dcg='x' will not do; it must be of type str: ['log2', 'exp-log2']"),
    ("BPM(T=2)", "cutoff and max_rel are missing; write BPM(T=2.0,max_rel=3)@10"),
    ("BPM(max_rel=2,min_rel=2)@10", "min_rel=2 is not below max_rel=2; raise max_rel to the highest grade"),
    (ir_measures.define_byquery(lambda qrels, run: 0.0, name="mine"), "unknown metric 'mine'"),
]


@pytest.mark.parametrize(("name", "words"), REFUSED, ids=[str(name) for name, _ in REFUSED])
def test_what_is_no_metric_is_answered_in_one_line(name: Any, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        canonical_metric(name)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_library_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, provider, advice in (
        ("ERR@20", "gdeval", "Install perl"),
        ("RBP(rel=2)", "cwl_eval", "pip install ir-measures[cwl_eval]"),
        ("alpha_nDCG@20", "pyndeval", "pip install ir-measures[pyndeval]), and qrels whose second column names the"),
    ):
        monkeypatch.setattr(ir_measures.providers.registry[provider], "_is_available", False)
        with pytest.raises(UsageError, match=re.escape(f"needs what is not installed: {provider} ({advice}")):
            score_run({"q": {"a": 1}}, {}, [name])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered goes with the test."""
    monkeypatch.setattr("unimoe.metrics.names._registered", {})


def test_a_measure_of_ones_own_can_be_named_like_any_other(own: None) -> None:
    register_measure("found@2", lambda grades, ranking: sum(grades.get(d, 0) > 0 for d in ranking[:2]), cutoff=2)
    assert (parse_metric("found@2").cutoff, parse_metric("found@2").binary) == (2, False)
    run = {"q1": {"a": 3.0, "x": 2.0, "b": 1.0}, "q2": {"b": 1.0}}
    scores = score_run({"q1": {"a": 1, "b": 2}, "q2": {"b": 1, "a": 0}}, run, ["found@2", "mrr"])
    assert scores.per_query["found@2"] == {"q1": 1.0, "q2": 1.0}
    with pytest.raises(UsageError, match="did you mean 'found@2'"):
        canonical_metric("fond@2")
    for taken in ("found@2", "ndcg@10", "RBP(rel=2)"):
        with pytest.raises(UsageError, match="exists already; choose another name"):
            register_measure(taken, lambda grades, ranking: 0.0)


@pytest.mark.parametrize("value", [math.nan, None, "many"])
def test_a_measure_of_ones_own_gives_numbers(value: Any, own: None) -> None:
    register_measure("odd", lambda grades, ranking: value)
    with pytest.raises(DataError, match=r"metric 'odd', query 'q1': its function's value .* is (no number|not finite)"):
        score_run({"q1": {"d1": 1}}, {"q1": {"d1": 1.0}}, "odd")
    register_measure("broken", lambda grades, ranking: 1 / 0)
    with pytest.raises(DataError, match="query 'q1': its function raised ZeroDivisionError: division by zero"):
        score_run({"q1": {"d1": 1}}, {"q1": {"d1": 1.0}}, "broken")
    function: Any = value  # is none either
    with pytest.raises(UsageError, match="give a name and a function"):
        register_measure("some", function)


def test_a_doubtful_relevance_level_is_noted() -> None:
    def note(*metrics: str, grade: int, stated: int | None = None) -> str | None:
        return level_note(metrics, {"q": {"a": grade}}, stated, where="x", remedy="y")

    graded = note("ndcg@10", "map", "AP(rel=2)", grade=3) or ""
    assert graded.startswith("grades up to 3 in x: map counts grade 1 as relevant; TREC DL")
    too_high = note("map", grade=1, stated=2) or ""
    assert too_high.startswith("no grade in x reaches relevance level 2, the highest is 1: map find nothing relevant")
    assert note("map", grade=3, stated=2) is note("map", grade=1) is None


def test_numbers_may_be_of_numpy_and_a_query_without_judgments_counts_nowhere() -> None:
    level: Any = np.int64(2)
    qrels: Any = {"q1": {"a": np.int64(1), "b": 2}, "q3": {}}
    run: Any = {"q1": {"a": np.float32(2.0), "b": 1.0}, "q9": {"d1": 1.0}, "q3": {"d1": 1.0}}
    scores = score_run(qrels, run, ["SetP", "map"], relevance_level=level)
    assert scores.aggregate == {"SetP": 0.5, "map": 0.5}
    assert scores.unjudged_queries == ["q3", "q9"]


@pytest.mark.parametrize(
    ("qrels", "run", "options", "words"),
    [
        ({}, {"q": {"d": 1.0}}, {}, "qrels hold no judgments"),
        ({"q": {}}, {"q": {"d": 1.0}}, {}, "qrels hold no judgments"),
        ({"q": {"d": 1}}, {"other": {"d": 1.0}}, {}, "none of the run's 1 queries is judged (the first is 'other')"),
        ({"q": {"d": 1}}, {"q": {"d": math.nan}}, {}, "query 'q', document 'd': score 'nan' is not finite"),
        ({"q": {"d": 1}}, {"q": {"d": 1e300}}, {}, "score '1e+300' is beyond float32"),
        ({"q": {"d": 1e6}}, {"q": {"d": 1.0}}, {}, "query 'q', document 'd': grade '1000000.0' is beyond 100,000"),
        ({"q": {"d": "1"}}, {"q": {"d": 1.0}}, {}, "query 'q', document 'd': grade '1' is no number"),
        ({"q": {"d": 1}}, {"q": {"d": None}}, {}, "query 'q', document 'd': score None is no number"),
        ({1: {"d": 1}}, {"1": {"d": 1.0}}, {}, "query 1: the id 1 is no text; write '1'"),
        ({"q": {"d": 1}}, {"q": {2: 1.0}}, {}, "query 'q': the id 2 is no text; write '2'"),
        ({"q": {"\ud800": 1}}, {"q": {}}, {}, "query 'q': the id '\\ud800' holds half a surrogate pair; rename it"),
        ({"q": {"d": 1}}, {"q": ["d"]}, {}, "query 'q': list where a run should be; give {document id: score}"),
        ({"q": ["d"]}, {}, {}, "query 'q': list where qrels should be; give {document id: grade}"),
        ("q.txt", {}, {}, "str where qrels should be; give {query id: {document id: grade}}, or read the file first"),
        ({"q": {"d": 1}}, "a.trec", {}, "str where a run should be; give {query id: {document id: score}}, or read"),
        ({"q": {"d": 1}}, {}, {"metrics": [10]}, "metric 10 is no text"),
        ({"q": {"d": 1}}, {}, {"relevance_level": "2"}, "relevance level '2' will not do; use a whole number from 1"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_words(qrels: Any, run: Any, options: Any, words: str) -> None:
    with pytest.raises((DataError, UsageError)) as refusal:
        score_run(qrels, run, **options)
    assert words in str(refusal.value)


def test_recall_of_the_retrieved_divides_by_what_the_run_holds_where_that_is_less() -> None:
    qrels, run = {"q": dict.fromkeys("abcd", 1), "empty": {"a": 1}}, {"q": {"a": 2.0, "x": 1.0}, "empty": {}}
    scores = score_run(qrels, run, ["recall_of_retrieved@10", "recall_cap@10"])
    assert scores.per_query == {
        "recall_of_retrieved@10": {"q": 1 / 2, "empty": 0.0},
        "recall_cap@10": {"q": 1 / 4, "empty": 0.0},
    }


def test_the_capped_recall_is_that_of_mteb() -> None:
    peer = pytest.importorskip("mteb._evaluators.retrieval_metrics", reason="needs unimoe[models]")
    rng = np.random.default_rng(4)
    documents = [f"d{i:02}" for i in range(40)]
    qrels = {f"q{i}": dict(zip(documents, rng.integers(0, 3, 40).tolist(), strict=True)) for i in range(20)}
    found = {query: rng.choice(documents, size=rng.integers(1, 40), replace=False).tolist() for query in qrels}
    run = {query: {document: float(rng.integers(0, 9)) for document in found[query]} for query in qrels}  # with ties
    theirs = peer.recall_cap(qrels, run, [1, 5, 10, 50])
    scores = score_run(qrels, run, [f"recall_cap@{cutoff}" for cutoff in (1, 5, 10, 50)])
    for cutoff in (1, 5, 10, 50):
        ours = list(scores.per_query[f"recall_cap@{cutoff}"].values())
        assert ours == pytest.approx(theirs[f"R_cap_at_{cutoff}"], abs=1e-15)


JUDGED = {"q1": {"a": 1, "b": 2}, "q2": {"a": 1, "c": 0}}


def test_below_a_threshold_nothing_is_relevant_and_every_judgment_stays() -> None:
    assert from_grade(JUDGED, 1) == JUDGED
    assert from_grade(JUDGED, 2) == {"q1": {"a": 0, "b": 2}, "q2": {"a": 0, "c": 0}}
    assert JUDGED["q1"]["a"] == 1
    with pytest.raises(DataError, match=r"reaches grade 3, the highest is 2, .* lower relevance_threshold"):
        from_grade(JUDGED, 3)


def test_cqadupstack_counts_once_in_a_suite() -> None:
    for name in ("cqadupstack/tex", "path:data/cqadupstack/tex", "mteb:CQADupstackTexRetrieval"):
        assert dataset_group(name) == "cqadupstack"
    assert dataset_group("scifact") == "scifact"
    values = {"cqadupstack/tex": 0.2, "cqadupstack/unix": 0.4, "scifact": 0.7}
    scores = {name: {"map": value} for name, value in values.items()}
    assert suite_averages(dict.fromkeys(values, "map"), scores) == {"map": pytest.approx(0.5, abs=1e-15)}
    assert suite_averages({**dict.fromkeys(values, "map"), "fiqa": "map"}, scores) == {}  # which has none


GRADED = Collection(
    name="toy",
    split="test",
    corpus={"a": Document("", "red fish"), "b": Document("", "blue fish")},
    queries={"q1": "red", "q2": "blue"},
    qrels={"q1": {"a": 1}, "q2": {"b": 3, "a": 1}},
)


def written(folder: Path, collection: Collection = GRADED, **stated: Any) -> Path:
    write_beir(collection, folder)
    if stated:
        (folder / "collection.json").write_text(json.dumps(stated))
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return parse_config(Experiment, tiny_experiment_dict(tmp_path), source="tiny")


def test_a_folder_states_name_and_level_and_its_parts_keep_them(tmp_path: Path) -> None:
    found = load_collection(f"path:{written(tmp_path / 'toy', name='dl20', relevance_level=2)}", "test")
    for part in (found, found.sample_queries(1), *found.split_queries(0.5), found.pool(2)):
        assert (part.name, part.relevance_level, part.level_stated) == ("dl20", 2, True)


def test_what_is_known_of_published_sets() -> None:
    known = {
        "ir_datasets:msmarco-passage/trec-dl-2019": 2,
        "ir_datasets:msmarco-document/trec-dl-2019": 1,  # where TREC counts from "relevant", which is 1
        "ir_datasets:beir/msmarco/test": 2,
        "ir_datasets:beir/msmarco/dev": 1,
        "ir_datasets:antique/test": None,
        "msmarco": 2,
        "path:data/msmarco": 2,
        "apidocs": 1,
        "path:data/DBPedia": 1,
        "cqadupstack/tex": 1,
        "mteb:NFCorpus": 1,
        "path:data/mine": None,
    }
    for collection, level in known.items():
        source, name = find_source(collection)
        assert source.relevance_level(name, "dev" if collection.endswith("dev") else "test") == level, collection


def test_a_folder_may_not_take_the_name_of_a_set(experiment: Experiment, tmp_path: Path) -> None:
    folder = written(tmp_path / "SciFact")
    with pytest.raises(UsageError, match=r"scifact and path:.* would both be 'SciFact' in results; state another"):
        chosen_datasets(experiment, ["scifact", f"path:{folder}"])


def test_graded_judgments_without_a_stated_level_are_noted(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "toy")
    (dataset,) = chosen_datasets(experiment, [f"path:{folder}"])
    load_reporting(dataset)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("warning: grades up to 3 in toy: mrr@10, map, recall@100 count grade 1 as relevant")
    assert said.endswith(f": state relevance_level in {folder}/collection.json")
    for path in (written(tmp_path / "stated", relevance_level=1), written(tmp_path / "nfcorpus")):
        load_reporting(Dataset(f"path:{path}", "test"))
    assert capsys.readouterr().err == ""


RUN = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 2.0, "b": 1.0}}


def found(level: int) -> Outcome:
    scores = score_run(GRADED.qrels, RUN, ("ndcg@10", "mrr"), level)
    return Outcome("ndcg@10", RUN, GRADED.qrels, GRADED.queries, scores, relevance_level=level)


def test_exported_judgments_carry_a_level_other_than_1(tmp_path: Path) -> None:
    identity, store = make_result("joint_r8", 0, [0.5, 0.5], dataset="toy").identity, ResultStore(tmp_path)
    about = About(
        config_name="joint_r8", seed=0, task="retrieval", dataset="toy", identity=identity, config={}, caveats=[]
    )
    spec = Evaluation(about, {})
    assert store.write(spec, found(2)).relevance_level == 2
    assert read_plain(tmp_path / "qrels" / "toy-test.qrels.json") == {"relevance_level": 2}
    store.write(spec, found(1))
    assert [path.name for path in (tmp_path / "qrels").iterdir()] == ["toy-test.qrels"]


def test_dense_retrieval_keeps_the_level() -> None:
    data = dense_collection(Dataset("x", "test"), replace(GRADED, relevance_level=2, level_stated=True), DenseConfig())
    scores = Outcome.of_run(data.test, RUN, "ndcg@10", retrieval_metrics(DenseConfig())).scores
    assert scores.per_query["map"] == {"q1": 0.0, "q2": 0.5}
