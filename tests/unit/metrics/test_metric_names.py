"""Names of metrics: one for each, whatever the spelling, and a line for each that is none."""

from __future__ import annotations

import math
import re
from typing import Any

import ir_measures
import pytest

from unimoe.core.errors import DataError, UsageError
from unimoe.metrics import canonical_metric, parse_metric, register_measure, score_run
from unimoe.metrics.scoring import computable_metrics, level_note


@pytest.mark.parametrize(
    ("name", "canonical", "cutoff", "binary"),
    [
        ("ndcg@10", "ndcg@10", 10, False),
        ("NDCG@10", "ndcg@10", 10, False),
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
        ("bpref", "Bpref", None, True),
        ("AP(rel=1)", "AP(rel=1)", None, False),  # map may mean another level
        ("RBP(p=0.9,rel=2)", "RBP(rel=2,p=0.9)", None, False),
        ("ERR@20", "ERR@20", 20, False),
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
    ("ndgc@10", "unknown metric 'ndgc@10' (did you mean 'ndcg@10'?); use ndcg@K, mrr, mrr@K, map, map@K, recall@K"),
    ("ndgc_cut_10", "(did you mean 'ndcg_cut_10'?)"),
    ("ndcg@1٣", "(did you mean 'ndcg@10'?)"),
    ("recall", "(did you mean 'recall@10'?)"),
    ("judged@10", "(did you mean 'Judged@10'?)"),
    ("ndcg@10 ", "(did you mean 'ndcg@10'?)"),
    ("hits@1", "unknown metric 'hits@1'; use"),
    ('__import__("os")', "unknown metric '__import__(\"os\")'; use"),
    ("ndcg@99999999", "unknown metric 'ndcg@99999999'; use"),
    ("nDCG@99999999", f"cutoff=99999999 {WHOLE}"),
    ("nDCG@1.5", f"cutoff=1.5 {WHOLE}"),
    ("P", "cutoff is missing; write P@10"),
    (ir_measures.P, "cutoff is missing; write P@10"),
    ("IPrec", "recall is missing; write IPrec@0.1"),
    ("IPrec@0.123", "recall=0.123 will not do; it must be of type float from 0 to 1, of two decimals at most"),
    ("AP(re=2)", "AP has no parameter 're' (did you mean 'rel'?); it has cutoff, rel, judged_only"),
    ("AP(rel=True)", f"rel=True {WHOLE}"),
    ("AP(rel='2')", f"rel='2' {WHOLE}"),
    ("AP(2)", UNREADABLE),
    ("nDCG(gains={1:-1})", UNREADABLE),
    (ir_measures.RBP(p=2.0), "p=2.0 will not do; it must be of type float from 0.001 to 0.999"),
    ("RBP", f"{NOTHING} (it has cutoff, p, rel), or use another measure"),
    ("NumRel(rel=2)", NOTHING),
    ("RR(judged_only=True)@5", NOTHING),
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


@pytest.mark.parametrize(
    ("name", "provider", "advice"),
    [("ERR@20", "gdeval", "Install perl"), ("RBP(rel=2)", "cwl_eval", "pip install ir-measures[cwl_eval]")],
)
def test_a_library_that_is_not_here_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, provider: str, advice: str
) -> None:
    monkeypatch.setattr(ir_measures.providers.registry[provider], "_is_available", False)
    with pytest.raises(UsageError, match=re.escape(f"needs what is not installed: {provider} ({advice}")):
        score_run({"q": {"a": 1}}, {}, [name])


def test_a_measure_without_a_level_is_refused_at_another() -> None:
    assert computable_metrics(["NumRel"], 1) == ("NumRel",)
    with pytest.raises(UsageError, match="metric 'NumRel': nothing computes it at relevance level 2; leave it out"):
        computable_metrics(["NumRel"], 2)


def test_a_measure_of_ones_own_can_be_named_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
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
def test_a_measure_of_ones_own_gives_numbers(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    register_measure("odd", lambda grades, ranking: value)
    with pytest.raises(DataError, match=r"metric 'odd', query 'q1': its function's value .* is (no number|not finite)"):
        score_run({"q1": {"d1": 1}}, {"q1": {"d1": 1.0}}, "odd")
    function: Any = value  # is none either
    with pytest.raises(UsageError, match="give a name and a function"):
        register_measure("some", function)


@pytest.mark.parametrize(
    ("metrics", "grade", "stated", "note"),
    [
        (("ndcg@10", "map", "AP(rel=2)"), 3, None, "grades up to 3 in x: map counts grade 1 as relevant; TREC DL"),
        (("map",), 1, 2, "no grade in x reaches relevance level 2, the highest is 1: map find nothing relevant"),
        (("map",), 3, 2, ""),
        (("map",), 1, None, ""),
    ],
)
def test_a_doubtful_relevance_level_is_noted(
    metrics: tuple[str, ...], grade: int, stated: int | None, note: str
) -> None:
    found = level_note(metrics, {"q": {"a": grade}}, stated, where="x", remedy="y")
    assert (found or "").startswith(note)
    assert (found is None) == (note == "")
