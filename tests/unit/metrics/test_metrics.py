"""Measures follow ``trec_eval -c``; the numbers themselves are in tests/golden."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from unimoe.core.errors import DataError, UsageError
from unimoe.metrics import score_run
from unimoe.metrics.scoring import dataset_group, from_grade, suite_averages


def test_a_query_without_judgments_counts_nowhere_and_is_listed() -> None:
    run = {"q1": {"d1": 1.0}, "q9": {"d1": 1.0}, "q3": {"d1": 1.0}}
    scores = score_run({"q1": {"d1": 1}, "q3": {}}, run)
    assert scores.per_query["ndcg@10"] == {"q1": 1.0}
    assert scores.aggregate["ndcg@10"] == 1.0
    assert scores.unjudged_queries == ["q3", "q9"]


@pytest.mark.parametrize(
    ("qrels", "run", "options", "words"),
    [
        ({}, {"q": {"d": 1.0}}, {}, "qrels hold no judgments"),
        ({"q": {}}, {"q": {"d": 1.0}}, {}, "qrels hold no judgments"),
        ({"q": {"d": 1}}, {"other": {"d": 1.0}}, {}, "none of the run's 1 queries is judged (the first is 'other')"),
        ({"q": {"d": 1}}, {"q": {"d": math.nan}}, {}, "query 'q', document 'd': score 'nan' is not finite"),
        ({"q": {"d": 1}}, {"q": {"d": np.float32("inf")}}, {}, "query 'q', document 'd': score 'inf' is not finite"),
        ({"q": {"d": 1}}, {"q": {"d": 1e300}}, {}, "score '1e+300' is beyond float32"),
        ({"q": {"d": 0.5}}, {"q": {"d": 1.0}}, {}, "query 'q', document 'd': grade '0.5' is not a whole number"),
        ({"q": {"d": "1"}}, {"q": {"d": 1.0}}, {}, "query 'q', document 'd': grade '1' is no number"),
        ({"q": {"d": 1}}, {"q": {"d": None}}, {}, "query 'q', document 'd': score None is no number"),
        ({1: {"d": 1}}, {"1": {"d": 1.0}}, {}, "query 1: the id 1 is no text; write '1'"),
        ({"q": {"d": 1}}, {"q": {2: 1.0}}, {}, "query 'q': the id 2 is no text; write '2'"),
        ({"q": {"d": 1}}, {"q": ["d"]}, {}, "query 'q': list where a run should be; give {document id: score}"),
        ({"q": ["d"]}, {}, {}, "query 'q': list where qrels should be; give {document id: grade}"),
        ("q.txt", {}, {}, "str where qrels should be; give {query id: {document id: grade}}, or read the file first"),
        ({"q": {"d": 1}}, "a.trec", {}, "str where a run should be; give {query id: {document id: score}}, or read"),
        ({"q": {"d": 1}}, {}, {"metrics": [10]}, "metric 10 is no text"),
        ({"q": {"d": 1}}, {}, {"relevance_level": "2"}, "relevance level '2' will not do; use a whole number from 1"),
        ({"q": {"d": 1}}, {}, {"relevance_level": 0}, "relevance level 0 will not do; use a whole number from 1"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_words(qrels: Any, run: Any, options: Any, words: str) -> None:
    with pytest.raises((DataError, UsageError)) as refusal:
        score_run(qrels, run, **options)
    assert words in str(refusal.value)


def test_numpy_grades_and_scores_are_numbers() -> None:
    qrels, run = {"q1": {"d1": np.int64(1)}}, {"q1": {"d1": np.float32(1.0)}}
    assert score_run(qrels, run).aggregate["map"] == 1.0  # type: ignore[arg-type]


def test_a_cut_falls_where_float32_ties_do() -> None:
    # In float64 "a" is first; in float32 the two tie, and "b" comes first because ids break ties descending.
    run = {"q1": {"a": 1 + 1e-9, "b": 1.0}}
    scores = score_run({"q1": {"a": 1}}, run, ["mrr@1", "mrr@2", "mrr", "p@1"])
    assert scores.aggregate == {"mrr@1": 0.0, "mrr@2": 0.5, "mrr": 0.5, "p@1": 0.0}


FOUR_RELEVANT = {"q": {"a": 1, "b": 2, "c": 1, "n": 0, "gone": 1}}
"""One of the four no run holds."""


class TestCappedRecall:
    @pytest.mark.parametrize(
        ("ranking", "cutoff", "expected"),
        [
            ("abc", 2, 2 / 2),  # both places hold a relevant one; two more are beyond reach
            ("axbyc", 3, 2 / 3),
            ("axbyc", 5, 3 / 4),  # all four could be there
            ("ax", 10, 1 / 2),  # two retrieved
            ("xynz", 10, 0.0),
            ("", 10, 0.0),
        ],
    )
    def test_by_hand(self, ranking: str, cutoff: int, expected: float) -> None:
        run = {"q": {document: float(-place) for place, document in enumerate(ranking)}}
        of_retrieved, capped = f"recall_of_retrieved@{cutoff}", f"recall_cap@{cutoff}"
        found = score_run(FOUR_RELEVANT, run, [of_retrieved, capped]).aggregate
        assert found[of_retrieved] == pytest.approx(expected, abs=1e-15)
        missed = 1 / 2 if ranking == "ax" else 1.0  # MTEB divides by the four that ten places could hold
        assert found[capped] == pytest.approx(expected * missed, abs=1e-15)

    def test_the_capped_recall_is_that_of_mteb(self) -> None:
        from mteb._evaluators.retrieval_metrics import recall_cap

        rng = np.random.default_rng(4)
        documents = [f"d{i:02}" for i in range(40)]
        qrels = {f"q{i}": dict(zip(documents, rng.integers(0, 3, 40).tolist(), strict=True)) for i in range(20)}
        run: dict[str, dict[str, float]] = {}
        for query_id in qrels:
            found = rng.choice(documents, size=rng.integers(1, 40), replace=False).tolist()
            run[query_id] = {document: float(rng.integers(0, 9)) for document in found}  # with ties
        theirs = recall_cap(qrels, run, [1, 5, 10, 50])
        for cutoff in (1, 5, 10, 50):
            metric = f"recall_cap@{cutoff}"
            ours = score_run(qrels, run, [metric]).per_query[metric]
            assert list(ours.values()) == pytest.approx(theirs[f"R_cap_at_{cutoff}"], abs=1e-15)


GRADED = {"q1": {"a": 1, "b": 2}, "q2": {"a": 1, "c": 0}}


def test_below_a_threshold_nothing_is_relevant_and_every_judgment_stays() -> None:
    assert from_grade(GRADED, 1) == GRADED
    assert from_grade(GRADED, 2) == {"q1": {"a": 0, "b": 2}, "q2": {"a": 0, "c": 0}}
    assert GRADED["q1"]["a"] == 1
    with pytest.raises(DataError, match=r"reaches grade 3, the highest is 2, .* lower relevance_threshold"):
        from_grade(GRADED, 3)


def test_cqadupstack_counts_once_in_a_suite() -> None:
    for name in ("cqadupstack/tex", "path:data/cqadupstack/tex", "mteb:CQADupstackTexRetrieval"):
        assert dataset_group(name) == "cqadupstack"
    assert dataset_group("scifact") == "scifact"
    values = {"cqadupstack/tex": 0.2, "cqadupstack/unix": 0.4, "scifact": 0.7}
    scores = {name: {"map": value} for name, value in values.items()}
    assert suite_averages(dict.fromkeys(values, "map"), scores) == {"map": pytest.approx(0.5, abs=1e-15)}
    assert suite_averages({**dict.fromkeys(values, "map"), "fiqa": "map"}, scores) == {}  # which has none
