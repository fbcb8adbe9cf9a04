"""Exact values: nDCG of every perturbation against pytrec_eval, estimates against analytic gradients."""

from __future__ import annotations

from math import exp, log2, pi, sqrt

import pytest
import pytrec_eval
import torch
from scipy.stats import norm
from support.toy_pools import doubled

from unimoe.studies.heads.eggroll.ndcg import PoolMetric, ideal_dcg
from unimoe.studies.heads.eggroll.noise import directions, product_directions, score_noise
from unimoe.studies.heads.eggroll.scoring import Scorer
from unimoe.studies.heads.eggroll.update import estimate
from unimoe.studies.heads.pools import Pools
from unimoe.training.losses.sampled import score_space_gradient

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


def test_every_perturbations_fitness_is_pytrec_evals() -> None:
    """Documents stand in descending order of ids, some twice in a pool, and one judged document is in none."""
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 10, generator=draw)
    documents = torch.randn(4, 30, 10, generator=draw)
    documents[:, 7] = documents[:, 3]
    documents[:, 21] = documents[:, 15]
    pools = Pools(torch.randn(4, 10, generator=draw), documents)
    grades = torch.randint(0, 12, (4, 30), generator=draw).sub(8).clamp_min(0)
    ids = sorted((str(number) for number in range(100, 130)), reverse=True)
    qrels = {str(q): {"missing": 2} | {ids[p]: int(grades[q, p]) for p in range(30)} for q in range(4)}
    ideal = torch.tensor([ideal_dcg(list(qrels[str(q)].values()), 10) for q in range(4)], dtype=F64)
    perturbations = directions(0, 0, 8, 6, 10)
    metric = PoolMetric(grades.float(), ideal, 10)
    scores = torch.cat([part for _, part in Scorer("dot").blocks(weight, pools, perturbations, 0.3)])
    found = metric(scores)
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"})
    for number in range(16):
        run = {str(q): dict(zip(ids, scores[q, :, number].tolist(), strict=True)) for q in range(4)}
        expected = evaluator.evaluate(run)
        assert found[:, number].tolist() == pytest.approx(
            [expected[str(q)]["ndcg_cut_10"] for q in range(4)], rel=0, abs=1e-12
        )


@pytest.mark.parametrize("rank", [1, 4])
def test_the_estimate_of_a_linear_objective_is_its_gradient_in_the_mean(rank: int) -> None:
    """With ``f(W) = <G, W>`` the mean is G, at every sigma; entries err by at most ``sqrt(2.. 6) |G| / sqrt(M)``."""
    count, truth = 60_000, torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    noise = doubled(directions(5, 0, count, 3, 4, rank=rank))
    change = torch.einsum("mko,od,mkd->m", noise.a, truth, noise.b) / rank**0.5
    for sigma in (0.01, 3.0):
        found = estimate(noise, torch.cat([sigma * change, -sigma * change]), sigma)
        torch.testing.assert_close(found, truth, rtol=0, atol=5 * sqrt(6 / count) * float(truth.norm()))


def test_the_squared_error_of_product_directions_is_the_stated_one() -> None:
    """On a linear objective, over 3,000 sets of 6 x 5 directions."""
    d_out, d_in, inputs, outputs = 4, 7, 6, 5
    truth = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(0), dtype=F64)
    errors = []
    for step in range(3000):
        noise = doubled(product_directions(0, step, inputs, outputs, d_out, d_in))
        change = (noise.b @ truth.T @ noise.a.T).flatten()
        errors.append(
            (estimate(noise, torch.cat([change, -change]), 1.0) - truth).square().sum() / truth.square().sum()
        )
    expected = (1 + (d_out + 1) / outputs) * (1 + (d_in + 1) / inputs) - 1
    assert float(torch.stack(errors).mean()) == pytest.approx(expected, rel=0.06)


def test_the_score_space_gradient_is_the_smoothed_metrics() -> None:
    """Two documents, the first relevant: the mean metric is ``d2 + (1 - d2) Phi(t)``, ``t`` the gap over its noise.

    Its slope at the first score is ``(1 - d2) phi(t) / (sqrt(2) sigma)``, and minus that at the second.
    """
    sigma, count = 0.4, 200_000
    scores = torch.tensor([[0.3, 0.1]])
    gradient, fitness = score_space_gradient(
        scores, PoolMetric(torch.tensor([[1.0, 0.0]]), torch.ones(1), 10), sigma, score_noise(0, 0, count, scores)
    )
    second, t = 1 / log2(3), 0.2 / (sqrt(2) * sigma)
    slope = (1 - second) * exp(-t * t / 2) / sqrt(2 * pi) / (sqrt(2) * sigma)
    assert gradient[0].tolist() == pytest.approx([slope, -slope], abs=5 * 0.37 / sigma / sqrt(2 * count))
    assert float(fitness.mean()) == pytest.approx(second + (1 - second) * norm.cdf(t), abs=3e-3)
