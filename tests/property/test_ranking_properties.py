"""What holds for every ranking, for every dense search, and for the rankings that evolution compares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unimoe.core.trec import head, ranked
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.retrieval.dense import search
from unimoe.studies.heads.eggroll.method import average_ranks, shape
from unimoe.studies.heads.eggroll.noise import directions
from unimoe.studies.heads.eggroll.objectives import PoolMetric, ideal_dcg

pytestmark = pytest.mark.usefixtures("one_thread")

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
    """Whether a run is of the judged queries at all, or empty; another is refused."""
    return not run or not run.keys().isdisjoint(qrels)


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


SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 60), st.integers(1, 40))
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(SHAPES, SEEDS, st.integers(1, 70), st.integers(1, 4000), st.booleans())
def test_the_run_does_not_depend_on_blocks_or_backend(
    shape: tuple[int, int, int], seed: int, k: int, block_bytes: int, exclude_self: bool
) -> None:
    count, rows, width = shape
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((count, width), dtype=np.float32)
    vectors = rng.standard_normal((rows, width), dtype=np.float32)[rng.integers(0, rows, rows)]  # some rows twice
    ids = [str(number) for number in rng.permutation(1000)[:rows]]
    query_ids = [str(number) for number in rng.permutation(1000)[:count]]
    excluded = {key: [key] * exclude_self for key in query_ids}
    settings: dict[str, Any] = {"excluded": excluded | {query_ids[0]: ids[::7]}}

    def found(**how: Any) -> list[tuple[str, list[tuple[str, float]]]]:
        run = search(queries, query_ids, vectors, ids, k, **settings, **how)
        return [(key, list(scores.items())) for key, scores in run.items()]

    whole = found()
    assert found(block_bytes=block_bytes) == whole
    assert found(backend="faiss", block_bytes=block_bytes) == whole


@settings(max_examples=60)
@given(SHAPES, SEEDS, st.integers(1, 70), st.integers(1, 2000), st.booleans(), st.booleans())
def test_small_whole_numbers_are_ranked_as_trec_eval_ranks_them(
    shape: tuple[int, int, int], seed: int, k: int, block_bytes: int, exclude_self: bool, passages: bool
) -> None:
    """Their products are exact, and most tie; what a query excludes goes before the cut; the best passage counts."""
    count, rows, width = shape
    rng = np.random.default_rng(seed)
    queries = rng.integers(-1, 2, (count, width)).astype(np.float32)
    vectors = rng.integers(-1, 2, (rows, width)).astype(np.float32)
    starts = np.unique([0, *rng.integers(0, rows, rows // 3)]) if passages else np.arange(rows)
    ids = [str(number) for number in range(len(starts))]
    query_ids = [str(number) for number in range(0, 2 * count, 2)]
    excluded = {key: [key] * exclude_self for key in query_ids}
    excluded[query_ids[0]] += ids[::3]
    settings: dict[str, Any] = {"excluded": excluded, "starts": starts}
    run = search(queries, query_ids, vectors, ids, k, block_bytes=block_bytes, **settings)
    best = np.maximum.reduceat(queries @ vectors.T, starts, axis=1)
    for query_id, scores in zip(query_ids, best.tolist(), strict=True):
        every = {key: score for key, score in zip(ids, scores, strict=True) if key not in excluded[query_id]}
        assert list(run[query_id].items()) == list(head(every, k).items())


@settings(max_examples=80)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 12), st.integers(1, 20), SEEDS, st.integers(1, 60))
def test_ndcg_of_float32_scores_is_pytrec_evals_ties_included(
    queries: int, size: int, rankings: int, k: int, seed: int, levels: int
) -> None:
    """Few levels tie nearly all scores. Some judged documents are in no pool."""
    draw = torch.Generator().manual_seed(seed)
    grades = torch.randint(-6, 4, (queries, size), generator=draw).clamp_min(0)
    valid = torch.rand(queries, size, generator=draw) < 0.8
    valid[:, 0] = True
    grades = grades * valid
    scores = torch.randint(0, levels, (queries, size, rankings), generator=draw).float() / 7 - 1
    scores[0] += torch.rand(size, rankings, generator=draw) * 1e-7
    ids = sorted((str(number) for number in range(size)), reverse=True)
    qrels = {}
    for query in range(queries):
        inside = {ids[place]: int(grades[query, place]) for place in range(size) if valid[query, place]}
        qrels[str(query)] = inside | {"outside": int(torch.randint(0, 3, (), generator=draw))}
    ideal = torch.tensor([ideal_dcg(list(judged.values()), k) for judged in qrels.values()], dtype=torch.float64)
    found = PoolMetric(grades.float(), ideal, k)(scores.masked_fill(~valid.unsqueeze(2), -torch.inf))
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{k}"})
    for ranking in range(rankings):
        run = {
            str(query): {
                ids[place]: float(scores[query, place, ranking]) for place in range(size) if valid[query, place]
            }
            for query in range(queries)
        }
        expected = evaluator.evaluate(run)
        for query in range(queries):
            assert abs(float(found[query, ranking]) - expected[str(query)][f"ndcg_cut_{k}"]) < 1e-12


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=40))
def test_ranks_depend_on_order_alone_and_sum_to_nothing(values: list[float]) -> None:
    fitness = torch.tensor(values, dtype=torch.float64)
    shaped = shape(fitness, "rank")
    assert abs(float(shaped.sum())) < 1e-12 * len(values)
    assert torch.equal(shape(fitness**3 + 5, "rank"), shaped)
    torch.testing.assert_close(shape(-fitness, "rank"), -shaped, rtol=0, atol=1e-15)
    by_hand = [sum(other < one for other in values) + (values.count(one) - 1) / 2 for one in values]
    assert average_ranks(fitness).tolist() == by_hand


@settings(max_examples=40)
@given(
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**40),
    st.integers(1, 4),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(0, 1000), st.integers(0, 10)),
)
def test_a_direction_depends_on_seed_step_and_number_alone(
    seed: int, step: int, rank: int, sizes: tuple[int, int], place: tuple[int, int]
) -> None:
    first, offset = place
    among = directions(seed, step, offset + 3, *sizes, rank=rank, first=first)
    alone = directions(seed, step, 1, *sizes, rank=rank, first=first + offset)
    assert torch.equal(among.a[offset], alone.a[0])
    assert torch.equal(among.b[offset], alone.b[0])
