"""Closed forms against weights that are built, one perturbation after the other."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import Scoring
from unimoe.studies.heads.eggroll.noise import Perturbations, ProductDirections, directions, product_directions
from unimoe.studies.heads.eggroll.scoring import Scorer, base_scores
from unimoe.studies.heads.pools import Pools

pytestmark = pytest.mark.usefixtures("one_thread")

SIMILARITIES = get_args(Scoring)
QUERIES, SIZE, WIDTH = 5, 7, 12


def problem(outputs: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Pools]:
    draw = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, WIDTH, generator=draw, dtype=dtype) / WIDTH**0.5
    queries = torch.randn(QUERIES, WIDTH, generator=draw, dtype=dtype)
    return weight, Pools(queries, torch.randn(QUERIES, SIZE, WIDTH, generator=draw, dtype=dtype))


def materialised(perturbations: Perturbations) -> Tensor:
    """Every direction as a matrix, ``(M, D_out, D_in)``, from its factors alone."""
    if isinstance(perturbations, ProductDirections):
        return torch.stack([torch.outer(a, b) for b in perturbations.b for a in perturbations.a])
    a, b = perturbations.outputs, perturbations.inputs  # rank-major rows
    count = perturbations.shape[0]
    rank = len(a) // count
    every = torch.stack([torch.outer(left, right) for left, right in zip(a, b, strict=True)])
    return torch.stack([every[j::count].sum(dim=0) for j in range(count)]) / float(rank**0.5)


def by_hand(weight: Tensor, pools: Pools, similarity: Scoring) -> Tensor:
    queries, documents = pools.queries @ weight.T, pools.documents @ weight.T
    if similarity == "cosine":
        return functional.cosine_similarity(queries.unsqueeze(1), documents, dim=2, eps=0)
    return (queries.unsqueeze(1) * documents).sum(dim=2)


def every_set(outputs: int, many: int = 9) -> dict[str, Perturbations]:
    f64 = torch.float64
    return {
        "rank 1": directions(1, 2, many, outputs, WIDTH, dtype=f64),
        "rank 3": directions(1, 2, many, outputs, WIDTH, rank=3, dtype=f64),
        "signs": directions(1, 2, many, outputs, WIDTH, rank=2, kind="rademacher", dtype=f64),
        "grid": product_directions(1, 2, 4, 3, outputs, WIDTH, dtype=f64),
    }


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("outputs", [2, 6, 11])
@pytest.mark.parametrize("kind", ["rank 1", "rank 3", "signs", "grid"])
def test_scores_are_those_of_the_perturbed_weights(similarity: Scoring, outputs: int, kind: str) -> None:
    weight, pools = problem(outputs)
    perturbations, sigma = every_set(outputs)[kind], 0.3
    every = materialised(perturbations)
    expected = [by_hand(weight + sign * sigma * change, pools, similarity) for sign in (1, -1) for change in every]
    found = Scorer(similarity).scores(weight, pools, perturbations, sigma)
    scale = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, torch.stack(expected, dim=2), rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_no_noise_leaves_the_base_scores(similarity: Scoring) -> None:
    weight, pools = problem(6)
    found = Scorer(similarity).scores(weight, pools, every_set(6)["rank 3"], 0.0)
    expected = base_scores(weight, pools, similarity)
    torch.testing.assert_close(expected, by_hand(weight, pools, similarity), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, expected.unsqueeze(2).expand_as(found), rtol=0, atol=1e-13)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", ["rank 3", "grid"])
def test_blocks_change_nothing(similarity: Scoring, kind: str) -> None:
    weight, pools = problem(6)
    perturbations = every_set(6)[kind]
    whole = Scorer(similarity).scores(weight, pools, perturbations, 0.2)
    parts = [*Scorer(similarity, block_bytes=1).blocks(weight, pools, perturbations, 0.2)]
    assert [(queries.start, queries.stop) for queries, _ in parts] == [(n, n + 1) for n in range(QUERIES)]
    torch.testing.assert_close(torch.cat([scores for _, scores in parts]), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_padding_scores_minus_infinity(similarity: Scoring) -> None:
    weight, pools = problem(6)
    valid = torch.ones(QUERIES, SIZE, dtype=torch.bool)
    valid[0, 3:] = valid[4, 1:] = False
    documents = pools.documents.clone()
    documents[~valid] = 0
    padded = Pools(pools.queries, documents, valid)
    found = Scorer(similarity).scores(weight, padded, every_set(6)["rank 1"], 0.3)
    assert bool((found[~valid] == -torch.inf).all())
    whole = Scorer(similarity).scores(weight, pools, every_set(6)["rank 1"], 0.3)
    torch.testing.assert_close(found[valid], whole[valid])
    assert bool((base_scores(weight, padded, similarity)[~valid] == -torch.inf).all())


def test_a_vector_of_length_zero_has_cosine_zero() -> None:
    weight, pools = problem(6)
    documents, queries = pools.documents.clone(), pools.queries.clone()
    documents[2, 1] = queries[3] = documents[3, 0] = 0
    found = Scorer("cosine").scores(weight, Pools(queries, documents), every_set(6)["rank 3"], 0.3)
    assert bool((found[2, 1] == 0).all())
    assert bool((found[3] == 0).all())


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_float32_agrees_with_float64(similarity: Scoring) -> None:
    weight, pools = problem(11, torch.float32)
    noise, wide = directions(0, 0, 50, 11, WIDTH), directions(0, 0, 50, 11, WIDTH, dtype=torch.float64)
    found = Scorer(similarity).scores(weight, pools, noise, 0.1)
    doubles = Pools(pools.queries.double(), pools.documents.double())
    exact = Scorer(similarity).scores(weight.double(), doubles, wide, 0.1)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_bfloat16_products_keep_exact_base_scores(similarity: Scoring) -> None:
    weight, pools = problem(11, torch.float32)
    noise = directions(0, 0, 30, 11, WIDTH)
    low = Scorer(similarity, gemm_dtype=torch.bfloat16)
    unmoved = low.scores(weight, pools, noise, 0.0)
    expected = base_scores(weight, pools, similarity)
    torch.testing.assert_close(unmoved, expected.unsqueeze(2).expand_as(unmoved), rtol=0, atol=1e-5)
    moved, exact = low.scores(weight, pools, noise, 0.01), Scorer(similarity).scores(weight, pools, noise, 0.01)
    change = (exact - expected.unsqueeze(2)).abs().max()
    assert 0 < float((moved - exact).abs().max()) < 0.03 * float(change)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_diverged_weight_is_no_ranking(similarity: Scoring) -> None:
    weight, pools = problem(6)
    weight[0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        Scorer(similarity).scores(weight, pools, every_set(6)["rank 1"], 0.1)
    with pytest.raises(DataError, match="not finite"):
        base_scores(weight, pools, similarity)
