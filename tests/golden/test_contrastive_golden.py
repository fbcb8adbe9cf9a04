"""Contrastive and sampled losses against peers and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses
from scipy.stats import norm
from torch import Tensor

from unimoe.config.training import LossConfig
from unimoe.training.losses.built_in import info_nce, nt_xent
from unimoe.training.losses.list_measures import ListMeasure
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import advantages, drawn_orders, prefix_slopes, score_space_gradient

TEMPERATURE = 0.2


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Six queries of three classes against ten documents: unit vectors, then classes."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (torch.randn(n, 8, generator=generator) for n in (6, 10))
    unit = torch.nn.functional.normalize
    return (
        unit(queries),
        unit(documents),
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2]),
    )


def test_one_positive_is_cross_entropy_whichever_way_it_is_computed() -> None:
    scores = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    positives = torch.tensor([3, 0, 8, 3, 1])
    mask = torch.nn.functional.one_hot(positives, 9).bool()
    expected = torch.nn.functional.cross_entropy(scores, positives)
    assert info_nce(scores, positives) == expected
    torch.testing.assert_close(info_nce(scores, mask), expected)
    torch.testing.assert_close(nt_xent(scores, mask, torch.ones_like(mask)).mean(), expected)


def test_several_positives_in_one_softmax_are_supcon() -> None:
    queries, documents, of_queries, of_documents = batch()
    scores = queries @ documents.T / TEMPERATURE
    positives = of_queries[:, None] == of_documents
    peer = losses.SupConLoss(temperature=TEMPERATURE, distance=distances.CosineSimilarity())
    expected = peer(queries, of_queries, ref_emb=documents, ref_labels=of_documents)
    torch.testing.assert_close(info_nce(scores, positives), expected)
    by_name = ListwiseLoss(LossConfig(name="supcon"))(list(scores), list(positives.float()))
    torch.testing.assert_close(by_name, expected)


def test_each_positive_against_the_negatives_is_nt_xent() -> None:
    """Theirs is the mean over pairs; every query has as many positives as another of its class."""
    queries, documents, of_queries, of_documents = batch()
    positives = of_queries[:, None] == of_documents
    scores = queries @ documents.T / TEMPERATURE
    peer = losses.NTXentLoss(temperature=TEMPERATURE, distance=distances.CosineSimilarity())
    expected = [
        peer(queries[i : i + 1], of_queries[i : i + 1], ref_emb=documents, ref_labels=of_documents) for i in range(6)
    ]
    found = nt_xent(scores, positives, torch.ones_like(positives))
    torch.testing.assert_close(found, torch.stack(expected))
    by_name = ListwiseLoss(LossConfig(name="infonce"))(list(scores), list(positives.float()))
    torch.testing.assert_close(by_name, torch.stack(expected).mean())


def test_both_by_hand_where_they_differ() -> None:
    """Scores 2 and 1 of positives, 0 of the negative."""
    scores, labels = [torch.tensor([2.0, 1.0, 0.0])], [torch.tensor([1.0, 1.0, 0.0])]
    e = math.e
    apart = (math.log(1 + e**-2) + math.log(1 + e**-1)) / 2
    together = math.log(e**2 + e + 1) - 1.5
    assert float(ListwiseLoss(LossConfig(name="infonce"))(scores, labels)) == pytest.approx(apart, rel=1e-6)
    assert float(ListwiseLoss(LossConfig(name="supcon"))(scores, labels)) == pytest.approx(together, rel=1e-6)


MEASURES = ("ndcg@10", "ndcg@2", "mrr@10", "ERR@20", "map")
CASES = {
    4: ([0.4, -0.2, 0.9, 0.1], [1.0, 0.0, 0.0, 2.0]),
    5: ([0.1, 1.4, 0.2, -0.6, 0.5], [1.0, 0.0, 3.0, 0.0, 1.0]),
    6: ([2.0, 0.3, 0.2, -0.6, 0.5, 0.7], [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]),
}


def case(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels, and all orders of a list."""
    scores, labels = CASES[size]
    orders = torch.tensor(list(permutations(range(size))))
    return torch.tensor([scores], dtype=torch.float64), torch.tensor([labels]), orders.unsqueeze(0)


def values_of(name: str, labels: Tensor, orders: Tensor) -> Tensor:
    return ListMeasure(name, labels, torch.ones_like(labels, dtype=torch.bool)).of_orders(orders)


def probabilities(scores: Tensor, orders: Tensor) -> Tensor:
    """Plackett-Luce's, straight from its definition."""
    in_order = scores[0][orders[0]]
    picks = [in_order[:, i] - in_order[:, i:].logsumexp(1) for i in range(in_order.shape[1])]
    return torch.stack(picks).sum(0).exp()


class TestPolicyGradient:
    @pytest.mark.parametrize("size", CASES)
    @pytest.mark.parametrize("name", MEASURES)
    def test_its_mean_over_all_permutations_is_the_derivative_of_the_mean(self, size: int, name: str) -> None:
        scores, labels, orders = case(size)
        values = values_of(name, labels, orders)
        tracked = scores.clone().requires_grad_()
        (probabilities(tracked, orders) * values[0]).sum().backward()  # type: ignore[no-untyped-call]
        weights = (probabilities(scores, orders) * values[0]).unsqueeze(0)
        cutoff = ListMeasure(name, labels, labels >= 0).cutoff
        for k in {cutoff, None}:
            torch.testing.assert_close(prefix_slopes(scores, orders, weights, k), tracked.grad, rtol=0, atol=1e-12)

    def test_the_mean_of_the_others_leaves_it_unbiased_and_one_own_share_does_not(self) -> None:
        """All pairs of rankings of four documents, each pair with its probability."""
        scores, labels, orders = case(4)
        values, chances = values_of("ndcg@10", labels, orders)[0], probabilities(scores, orders)
        truth = prefix_slopes(scores, orders, (chances * values).unsqueeze(0), None)
        pairs = torch.tensor(list(product(range(24), repeat=2)))
        both = (chances[pairs[:, 0]] * chances[pairs[:, 1]]).unsqueeze(1)
        several, batch = values[pairs], orders[0][pairs]
        for baseline, factor in (("leave_one_out", 1.0), ("none", 1.0)):
            weights = advantages(several, baseline) / 2 * both  # type: ignore[arg-type]
            found = prefix_slopes(scores.expand(len(pairs), -1), batch, weights, None).sum(0, keepdim=True)
            torch.testing.assert_close(found, factor * truth, rtol=0, atol=1e-12)
        centred = (several - several.mean(1, keepdim=True)) / 2 * both
        found = prefix_slopes(scores.expand(len(pairs), -1), batch, centred, None).sum(0, keepdim=True)
        torch.testing.assert_close(found, truth / 2, rtol=0, atol=1e-12)  # (N - 1) / N of it

    def test_rankings_are_drawn_with_their_probabilities(self) -> None:
        scores, _, orders = case(4)
        drawn = drawn_orders(scores, 200_000, torch.Generator().manual_seed(0))[0]
        numbers = {tuple(order): place for place, order in enumerate(orders[0].tolist())}
        counts = np.bincount([numbers[tuple(order)] for order in drawn.tolist()], minlength=24)
        expected = probabilities(scores, orders).numpy()
        errors = (counts / 200_000 - expected) / np.sqrt(expected / 200_000)
        assert np.abs(errors).max() < 4

    def test_far_scores_stay_finite(self) -> None:
        scores = torch.tensor([[200.0, -200.0, 0.0, -torch.inf]])
        orders = drawn_orders(scores, 16, torch.Generator().manual_seed(0))
        assert bool((orders[0, :, -1] == 3).all())
        found = prefix_slopes(scores, orders, torch.ones(1, 16), None)
        assert bool(found.isfinite().all())
        assert float(found[0, 3]) == 0


def sampled_gradient(options: dict[str, object], scores: Tensor, labels: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean loss and gradient of five draws, and the standard error of the gradient."""
    losses, found = [], []
    for seed in range(10):
        row = scores[0].float().requires_grad_()
        loss = ListwiseLoss(LossConfig(**options), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        value = loss([row], [labels[0]])
        value.backward()
        assert row.grad is not None
        losses.append(float(value.detach()))
        found.append(row.grad.double())
    rows = torch.stack(found)
    return float(np.mean(losses)), rows.mean(0), rows.std(0) / len(rows) ** 0.5 + 1e-9


def thurstone(scores: np.ndarray, sigma: float, orders: np.ndarray) -> np.ndarray:
    """Probability of every order under independent normal noise, by nested integrals on a fine grid."""
    grid = np.linspace(scores.min() - 9 * sigma, scores.max() + 9 * sigma, 6001)
    densities = norm.pdf(grid[None], scores[:, None], sigma)
    found = []
    for order in orders:
        below = np.ones_like(grid)
        for place in order[::-1]:
            inner = densities[place] * below
            below = np.concatenate([[0.0], np.cumsum((inner[1:] + inner[:-1]) / 2)]) * (grid[1] - grid[0])
        found.append(below[-1])
    return np.array(found)


def slopes(mean: Callable[[np.ndarray], float], at: np.ndarray) -> Tensor:
    """The derivatives of a function by central differences."""
    return torch.tensor([(mean(at + 1e-3 * e) - mean(at - 1e-3 * e)) / 2e-3 for e in np.eye(len(at))])


@pytest.mark.parametrize("name", MEASURES)
def test_the_estimate_in_the_space_of_scores_is_the_slope_of_the_smoothed_measure(name: str) -> None:
    scores, labels, orders = case(4)
    sigma, values = 0.7, values_of(name, labels, orders)[0].numpy()
    at, measure, found = scores[0].numpy(), ListMeasure(name, labels, labels >= 0), []
    expected = slopes(lambda x: float(thurstone(x, sigma, orders[0].numpy()) @ values), at)
    for seed in range(10):
        noise = torch.randn(20_000, 1, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        gradient, fitness = score_space_gradient(scores, measure, sigma, noise)
        found.append(gradient[0])
    rows = torch.stack(found)
    errors = (rows.mean(0) - expected) / (rows.std(0) / 10**0.5)
    assert float(errors.abs().max()) < 4.5  # of 20 slopes in all, by t with nine degrees of freedom
    assert float(rows.mean(0).abs().max()) > 0.02
    assert float(fitness.mean()) == pytest.approx(float(thurstone(at, sigma, orders[0].numpy()) @ values), abs=0.01)


@pytest.mark.parametrize("name", ["pg_rank", "score_es"])
def test_a_sampled_loss_has_value_and_gradient_of_the_mean_measure(name: str) -> None:
    """That of pg_rank under Plackett-Luce, that of score_es under noise in units of the scores' spread."""
    scores, labels, orders = case(4)
    values = values_of("ndcg@10", labels, orders)[0]
    spread = 0.5 * float(scores.std(correction=0))

    def mean(at: np.ndarray) -> float:
        if name == "pg_rank":
            return float((probabilities(torch.tensor(at)[None], orders) * values).sum())
        return float(thurstone(at, spread, orders[0].numpy()) @ values.numpy())

    options = {"name": name, "directions": 20_000, **({"sigma": 0.5} if name == "score_es" else {})}
    loss, gradient, error = sampled_gradient(options, scores, labels)
    assert loss == pytest.approx(1 - mean(scores[0].numpy()), abs=5e-3)
    assert float(((gradient + slopes(mean, scores[0].numpy())) / error).abs().max()) < 4.5


def test_a_false_negative_is_no_negative() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.2], [0.0, 2.0, 1.6]])
    excluded = torch.tensor([[False, False, True], [False, False, False]])
    first, second = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2) + math.exp(-0.4))
    loss = info_nce(scores, torch.tensor([0, 1]), excluded)
    assert float(loss) == pytest.approx((first + second) / 2, rel=1e-6)
