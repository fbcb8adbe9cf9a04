from __future__ import annotations

import pytest
import pytrec_eval
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unimoe.studies.heads.eggroll.ndcg import PoolMetric, ideal_dcg
from unimoe.studies.heads.eggroll.noise import directions
from unimoe.studies.heads.eggroll.update import average_ranks, shape

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = st.integers(0, 2**32 - 1)


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
