"""Measures follow ``trec_eval -c``; the numbers themselves are in tests/golden."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from unimoe.core.errors import DataError, UsageError
from unimoe.metrics import score_run
from unimoe.metrics.scoring import dataset_group, from_grade, suite_averages


class TestQueries:
    def test_a_query_without_judgments_counts_nowhere_and_is_listed(self) -> None:
        run = {"q1": {"d1": 1.0}, "q9": {"d1": 1.0}, "q3": {"d1": 1.0}}
        scores = score_run({"q1": {"d1": 1}, "q3": {}}, run)
        assert scores.per_query["ndcg@10"] == {"q1": 1.0}
        assert scores.aggregate["ndcg@10"] == 1.0
        assert scores.unjudged_queries == ["q3", "q9"]

    @pytest.mark.parametrize("qrels", [{}, {"q1": {}}])
    def test_without_any_judgment_there_is_nothing_to_score(self, qrels: dict[str, dict[str, int]]) -> None:
        with pytest.raises(DataError, match="qrels hold no judgments"):
            score_run(qrels, {"q1": {"d1": 1.0}})


class TestValues:
    @pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, np.float32("nan")])
    def test_a_score_that_is_no_number_is_refused_with_its_ids(self, score: float) -> None:
        with pytest.raises(DataError, match=r"query 'q1', document 'd2': score .* is not finite"):
            score_run({"q1": {"d1": 1}}, {"q1": {"d1": 1.0, "d2": score}})

    @pytest.mark.parametrize(
        ("qrels", "run", "words"),
        [
            ({1: {"d": 1}}, {"1": {"d": 1.0}}, "the id of a query, 1, is no text; write '1'"),
            ({"q": {1: 1}}, {"q": {"1": 1.0}}, "the id of a document, 1, is no text; write '1'"),
            ({"q": {"d": 1}}, {"q": {"d": 1.0}, 2: {}}, "the id of a query, 2, is no text; write '2'"),
            ({"q": {"d": 1}}, {"q": {2: 1.0}}, "the id of a document, 2, is no text; write '2'"),
            ({"q": {"d": "1"}}, {"q": {"d": 1.0}}, "query 'q', document 'd': grade '1' is no number"),
            ({"q": {"d": 1}}, {"q": {"d": None}}, "query 'q', document 'd': score None is no number"),
            ({"q": {"d": 1}}, {"q": ["d"]}, "query 'q': list where a run should be; give {document id: score}"),
            ({"q": ["d"]}, {}, "query 'q': list where qrels should be; give {document id: grade}"),
            ("qrels.txt", {}, "str where qrels should be; give {query id: {document id: grade}}, or read the file"),
            ({"q": {"d": 1}}, "a.trec", "str where a run should be; give {query id: {document id: score}}, or read"),
        ],
    )
    def test_what_is_no_run_or_no_qrels_is_refused_in_words(self, qrels: Any, run: Any, words: str) -> None:
        with pytest.raises(DataError) as refusal:
            score_run(qrels, run)
        assert words in str(refusal.value)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"metrics": [10]}, "metric 10 is no text"),
            ({"relevance_level": "2"}, "relevance level '2' is no whole number"),
        ],
    )
    def test_options_of_other_kinds_are_refused_in_words(self, options: Any, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            score_run({"q": {"d": 1}}, {"q": {"d": 1.0}}, **options)

    def test_numpy_grades_are_accepted_and_fractions_refused(self) -> None:
        assert score_run({"q1": {"d1": np.int64(1)}}, {"q1": {"d1": 1.0}}).aggregate["map"] == 1.0  # type: ignore[dict-item]
        with pytest.raises(DataError, match=r"query 'q1', document 'd1': grade '0\.5' is not a whole number"):
            score_run({"q1": {"d1": 0.5}}, {"q1": {"d1": 1.0}})  # type: ignore[dict-item]


class TestCutReciprocalRank:
    def test_the_cut_falls_where_float32_ties_do(self) -> None:
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

    def test_the_seeds_formula_on_random_runs(self) -> None:
        rng = np.random.default_rng(3)
        documents = [f"d{i}" for i in range(40)]
        qrels = {f"q{i}": dict(zip(documents, rng.integers(0, 2, 40).tolist(), strict=True)) for i in range(30)}
        run: dict[str, dict[str, float]] = {}
        for query_id in qrels:
            found = rng.choice(documents, size=rng.integers(1, 30), replace=False).tolist()
            run[query_id] = dict(zip(found, rng.permutation(len(found)).astype(float).tolist(), strict=True))
        for cutoff in (1, 5, 10, 50):
            metric = f"recall_of_retrieved@{cutoff}"
            scores = score_run(qrels, run, [metric, "ndcg@10"]).per_query[metric]
            for query_id, grades in qrels.items():
                top = set(sorted(run[query_id], key=lambda d: -run[query_id][d])[:cutoff])
                relevant = {document for document, grade in grades.items() if grade > 0}
                expected = len(top & relevant) / min(len(relevant), len(top))
                assert scores[query_id] == pytest.approx(expected, abs=1e-15)


GRADED = {"q1": {"a": 1, "b": 2}, "q2": {"a": 1, "c": 0}}


class TestThreshold:
    def test_grades_below_it_are_no_longer_relevant_and_every_judgment_stays(self) -> None:
        assert from_grade(GRADED, 1) == GRADED
        assert from_grade(GRADED, 2) == {"q1": {"a": 0, "b": 2}, "q2": {"a": 0, "c": 0}}
        assert GRADED["q1"]["a"] == 1
        run = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 1.0}}
        scores = score_run(from_grade(GRADED, 2), run, ["recall_of_retrieved@1"])
        assert scores.per_query["recall_of_retrieved@1"] == {"q1": 0.0, "q2": 0.0}

    def test_one_that_no_grade_reaches_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"reaches grade 3, the highest is 2, .* lower relevance_threshold"):
            from_grade(GRADED, 3)


class TestSuite:
    def test_cqadupstack_counts_once(self) -> None:
        assert dataset_group("cqadupstack/tex") == dataset_group("cqadupstack/unix") == "cqadupstack"
        assert dataset_group("scifact") == "scifact"
        assert dataset_group("path:data/cqadupstack/tex") == "cqadupstack"
        assert dataset_group("mteb:CQADupstackTexRetrieval") == "cqadupstack"
        values = {"cqadupstack/tex": 0.2, "cqadupstack/unix": 0.4, "scifact": 0.7}
        averages = suite_averages(
            dict.fromkeys(values, "map"), {name: {"map": value} for name, value in values.items()}
        )
        assert averages == {"map": pytest.approx(0.5, abs=1e-15)}
