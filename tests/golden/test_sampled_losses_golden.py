"""Measures of permuted lists against pytrec_eval and ir_measures; sampled losses against exact gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import ir_measures
import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from unimoe.config.losses import LOSSES, Loss
from unimoe.core.errors import InputError
from unimoe.metrics import register_measure, score_run
from unimoe.training.losses.list_measures import ListMeasure
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import advantages, drawn_orders, prefix_slopes

GRADES = [[2, 0, 1, 0, 3], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 2, 1, 1]]
LABELS, VALID = torch.tensor(GRADES, dtype=torch.float32), torch.ones(4, 5, dtype=torch.bool)
ORDERS = torch.tensor(list(permutations(range(5)))[::7])
NAMES = (
    "ndcg@10", "ndcg@3", "ndcg", "mrr", "mrr@2", "RR(rel=2)@10", "map", "map@3", "AP(rel=2)", "p@3", "p@10", "recall@2",
    "recall_cap@2", "recall_of_retrieved@10", "Success@1", "Success(rel=2)@3", "RBP(rel=1,p=0.8)", "Bpref", "Rprec",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_permutation_has_the_value_of_the_evaluator(name: str) -> None:
    found = ListMeasure(name, LABELS, VALID).of_orders(ORDERS.expand(4, -1, -1))
    qrels, run = {}, {}
    for row, grades in enumerate(GRADES):
        for number, order in enumerate(ORDERS.tolist()):
            qrels[f"{row}-{number}"] = {f"d{place}": grade for place, grade in enumerate(grades)}
            run[f"{row}-{number}"] = {f"d{place}": float(-rank) for rank, place in enumerate(order)}
    (expected,) = score_run(qrels, run, name).per_query.values()
    for row in range(4):
        values = [expected[f"{row}-{number}"] for number in range(len(ORDERS))]
        assert found[row].tolist() == pytest.approx(values, abs=1e-9)


def test_err_by_hand() -> None:
    """Grades 3 and 1 first: R = 7/16 and 1/16, so ERR is 7/16 + (9/16)(1/16) / 2."""
    labels = torch.tensor([[3.0, 1.0, 0.0]])
    found = ListMeasure("ERR@20", labels, labels >= 0)(torch.tensor([[[3.0], [2.0], [1.0]]]))
    assert float(found) == pytest.approx(7 / 16 + 9 / 16 / 16 / 2, abs=1e-12)
    first = ListMeasure("ERR@1", labels, labels >= 0)(torch.tensor([[[1.0], [2.0], [0.0]]]))
    assert float(first) == pytest.approx(1 / 16, abs=1e-12)


@pytest.mark.skipif(not ir_measures.gdeval.is_available(), reason="gdeval needs Perl")
def test_err_is_that_of_gdeval() -> None:
    found = ListMeasure("ERR@20", LABELS, VALID).of_orders(ORDERS[:6].expand(4, -1, -1))
    for number, order in enumerate(ORDERS[:6].tolist()):
        qrels = {str(row): {f"d{place}": grade for place, grade in enumerate(g)} for row, g in enumerate(GRADES)}
        run = {str(row): {f"d{place}": float(-rank) for rank, place in enumerate(order)} for row in range(4)}
        for value in ir_measures.gdeval.iter_calc([ir_measures.ERR @ 20], qrels, run):
            assert float(found[int(value.query_id), number]) == pytest.approx(value.value, abs=1e-5)


@pytest.mark.parametrize("name", ["ndcg@3", "map", "recall_of_retrieved@4", "ERR@20", "RBP(rel=1)"])
def test_padding_and_blocks_change_nothing(name: str) -> None:
    labels = torch.tensor([[1.0, 0, 2], [0, 1, 0]])
    scores = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    whole = ListMeasure(name, labels, torch.ones(2, 3, dtype=torch.bool))(scores)
    wide, there = torch.nn.functional.pad(labels, (0, 2)), torch.tensor([[True] * 3 + [False] * 2] * 2)
    padding = torch.full((2, 2, 8), -torch.inf)
    padded = ListMeasure(name, wide, there)
    rows = torch.cat([scores, padding], dim=1)
    torch.testing.assert_close(padded(rows), whole)
    torch.testing.assert_close(padded(rows[1:], slice(1, 2)), whole[1:])


def test_fractional_labels_are_gains_of_ndcg_and_refused_where_a_library_counts() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    there = torch.ones(2, 2, dtype=torch.bool)
    found = ListMeasure("ndcg@10", labels, there)(torch.tensor([[0.0, 1.0]] * 2).unsqueeze(2))
    assert found.flatten().tolist() == pytest.approx([0.63092975] * 2)  # 1 / log2(3): the gains cancel
    with pytest.raises(InputError, match=r"takes whole labels, and one is 0.5; take ndcg@10") as caught:
        ListMeasure("Bpref", labels, there)
    assert caught.value.index == 1
    with pytest.raises(InputError, match="ERR@20 takes labels up to 4, and one is 7"):
        ListMeasure("ERR@20", 7 * labels, there)


def test_a_measure_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    register_measure("last_is_bad", lambda grades, ranking: float(grades[ranking[-1]] == 0))
    found = ListMeasure("last_is_bad", LABELS[:1], VALID[:1]).of_orders(torch.tensor([[[0, 1, 2, 4, 3]]]))
    assert found.tolist() == [[1.0]]


MEASURES = ("ndcg@10", "ndcg@2", "mrr@10", "ERR@20", "map")
CASES = {
    4: ([0.4, -0.2, 0.9, 0.1], [1.0, 0.0, 0.0, 2.0]),
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


@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("name", MEASURES)
def test_the_mean_of_policy_gradients_over_all_permutations_is_the_derivative_of_the_mean(size: int, name: str) -> None:
    scores, labels, orders = case(size)
    values = values_of(name, labels, orders)
    tracked = scores.clone().requires_grad_()
    (probabilities(tracked, orders) * values[0]).sum().backward()  # type: ignore[no-untyped-call]
    weights = (probabilities(scores, orders) * values[0]).unsqueeze(0)
    cutoff = ListMeasure(name, labels, labels >= 0).cutoff
    for k in {cutoff, None}:
        torch.testing.assert_close(prefix_slopes(scores, orders, weights, k), tracked.grad, rtol=0, atol=1e-12)


def test_the_mean_of_the_others_leaves_the_policy_gradient_unbiased() -> None:
    """All pairs of rankings of four documents, each pair with its probability."""
    scores, labels, orders = case(4)
    values, chances = values_of("ndcg@10", labels, orders)[0], probabilities(scores, orders)
    truth = prefix_slopes(scores, orders, (chances * values).unsqueeze(0), None)
    pairs = torch.tensor(list(product(range(24), repeat=2)))
    both = (chances[pairs[:, 0]] * chances[pairs[:, 1]]).unsqueeze(1)
    several, batch = values[pairs], orders[0][pairs]
    for baseline in ("leave_one_out", "none"):
        weights = advantages(several, baseline) / 2 * both
        found = prefix_slopes(scores.expand(len(pairs), -1), batch, weights, None).sum(0, keepdim=True)
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def test_rankings_are_drawn_with_their_probabilities() -> None:
    scores, _, orders = case(4)
    drawn = drawn_orders(scores, 200_000, torch.Generator().manual_seed(0))[0]
    numbers = {tuple(order): place for place, order in enumerate(orders[0].tolist())}
    counts = np.bincount([numbers[tuple(order)] for order in drawn.tolist()], minlength=24)
    expected = probabilities(scores, orders).numpy()
    errors = (counts / 200_000 - expected) / np.sqrt(expected / 200_000)
    assert np.abs(errors).max() < 4


def test_far_scores_stay_finite() -> None:
    scores = torch.tensor([[200.0, -200.0, 0.0, -torch.inf]])
    orders = drawn_orders(scores, 16, torch.Generator().manual_seed(0))
    assert bool((orders[0, :, -1] == 3).all())
    found = prefix_slopes(scores, orders, torch.ones(1, 16), None)
    assert bool(found.isfinite().all())
    assert float(found[0, 3]) == 0


def sampled_gradient(config: Loss, scores: Tensor, labels: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean loss and gradient of ten draws, and the standard error of the gradient."""
    losses, found = [], []
    for seed in range(10):
        row = scores[0].float().requires_grad_()
        loss = ListwiseLoss(config, generator=torch.Generator().manual_seed(seed))
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

    keys = {"directions": 20_000, **({"sigma": 0.5} if name == "score_es" else {})}
    loss, gradient, error = sampled_gradient(LOSSES[name].model_validate(keys), scores, labels)
    assert loss == pytest.approx(1 - mean(scores[0].numpy()), abs=5e-3)
    assert float(((gradient + slopes(mean, scores[0].numpy())) / error).abs().max()) < 4.5
