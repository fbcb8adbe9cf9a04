"""What holds for every ranking."""

from __future__ import annotations

import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given
from hypothesis import strategies as st

from unimoe.core.trec import ranked
from unimoe.metrics import DEFAULT_METRICS, score_run

BINARY = ("mrr@3", "map", "recall@5", "recall_of_retrieved@5", "p@5", "Success@3", "Rprec", "Bpref")

documents = st.sampled_from([f"d{number}" for number in range(15)])
queries = st.sampled_from(["q1", "q2", "q3"])
# Few distinct values and some that differ in float64 only, so that ties are common.
scores = st.sampled_from([0.0, -0.0, 1.0, 1 + 1e-9, 1 - 1e-9, 2.0]) | st.floats(-1e6, 1e6)
runs = st.dictionaries(queries, st.dictionaries(documents, scores))
qrels_of_grades = st.dictionaries(queries, st.dictionaries(documents, st.integers(-2, 3), min_size=1), min_size=1)

Qrels = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]


def shares_a_query(qrels: Qrels, run: Run) -> bool:
    """Whether a run is of the judged queries at all, or empty; another is refused, which ``test_api`` shows."""
    return not run or not run.keys().isdisjoint(qrels)


def linear_ndcg(grades: dict[str, int], ranking: list[str], depth: int) -> float:
    def dcg(gains: list[int]) -> float:
        return sum(gain / math.log2(place + 1) for place, gain in enumerate(gains[:depth], start=1))

    ideal = dcg(sorted((max(0, grade) for grade in grades.values()), reverse=True))
    return dcg([max(0, grades.get(document, 0)) for document in ranking]) / ideal if ideal else 0.0


@given(qrels_of_grades, runs)
def test_values_lie_between_zero_and_one_for_exactly_the_judged_queries(qrels: Qrels, run: Run) -> None:
    assume(shares_a_query(qrels, run))
    result = score_run(qrels, run)
    for metric in DEFAULT_METRICS:
        values = result.per_query[metric]
        assert values.keys() == qrels.keys()
        assert all(0.0 <= value <= 1.0 + 1e-12 for value in values.values())
        assert result.aggregate[metric] == pytest.approx(sum(values.values()) / len(values), abs=1e-12)
    assert set(result.unjudged_queries) == run.keys() - qrels.keys()


@given(qrels_of_grades, runs, st.integers(1, 12))
def test_definitions_written_out_agree(qrels: Qrels, run: Run, depth: int) -> None:
    assume(shares_a_query(qrels, run))
    result = score_run(qrels, run, [f"ndcg@{depth}", f"mrr@{depth}"])
    for query_id, grades in qrels.items():
        ranking = ranked(run.get(query_id, {}))
        first = next((place for place, d in enumerate(ranking[:depth], start=1) if grades.get(d, 0) > 0), math.inf)
        assert result.per_query[f"mrr@{depth}"][query_id] == pytest.approx(1 / first, abs=1e-12)
        expected = linear_ndcg(grades, ranking, depth)
        assert result.per_query[f"ndcg@{depth}"][query_id] == pytest.approx(expected, abs=1e-12)


@given(st.dictionaries(documents, scores, min_size=1))
def test_the_order_is_trec_evals(ranking: dict[str, float]) -> None:
    # Ask trec_eval for the rank of each document in turn: 1 / reciprocal rank.
    for place, document in enumerate(ranked(ranking), start=1):
        evaluator = pytrec_eval.RelevanceEvaluator({"q": {document: 1}}, {"recip_rank"})
        assert round(1 / evaluator.evaluate({"q": ranking})["q"]["recip_rank"]) == place


@given(qrels_of_grades, runs)
def test_only_the_order_counts(qrels: Qrels, run: Run) -> None:
    assume(shares_a_query(qrels, run))
    places = {q: {d: -float(place) for place, d in enumerate(ranked(scored))} for q, scored in run.items()}
    assert score_run(qrels, run) == score_run(qrels, places)


@given(qrels_of_grades, runs)
def test_the_kind_of_number_does_not_count(qrels: Qrels, run: Run) -> None:
    assume(shares_a_query(qrels, run))
    single = {q: {d: np.float32(score) for d, score in scored.items()} for q, scored in run.items()}
    assert score_run(qrels, run) == score_run(qrels, single)  # type: ignore[arg-type]


@given(qrels_of_grades)
def test_ranking_by_grade_is_ideal(qrels: Qrels) -> None:
    run = {q: {d: float(grade) for d, grade in grades.items()} for q, grades in qrels.items()}
    for query_id, value in score_run(qrels, run, ["ndcg"]).per_query["ndcg"].items():
        assert value == pytest.approx(1.0 if max(qrels[query_id].values()) > 0 else 0.0, abs=1e-12)


@given(qrels_of_grades, runs, st.integers(1, 4))
def test_a_level_is_the_same_as_lower_grades_made_0(qrels: Qrels, run: Run, level: int) -> None:
    assume(shares_a_query(qrels, run))
    cut = {q: {d: grade if grade >= level or grade < 0 else 0 for d, grade in qrels[q].items()} for q in qrels}
    assert score_run(qrels, run, BINARY, level) == score_run(cut, run, BINARY)
    assert score_run(qrels, run, ["ndcg@10"], level) == score_run(qrels, run, ["ndcg@10"])
