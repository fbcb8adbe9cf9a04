"""Closed forms against weights that are built, one perturbation after the other."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from support.toy_pools import doubled
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import Scoring
from unimoe.studies.heads.eggroll import scoring
from unimoe.studies.heads.eggroll.noise import Perturbations, ProductDirections, directions, product_directions
from unimoe.studies.heads.eggroll.scoring import Scorer, base_scores
from unimoe.studies.heads.pools import Pools

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.parametrize("similarity", get_args(Scoring))]

QUERIES, SIZE, WIDTH = 5, 7, 12


def problem(outputs: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Pools]:
    draw = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, WIDTH, generator=draw, dtype=dtype) / WIDTH**0.5
    queries = torch.randn(QUERIES, WIDTH, generator=draw, dtype=dtype)
    return weight, Pools(queries, torch.randn(QUERIES, SIZE, WIDTH, generator=draw, dtype=dtype))


def noise_of(kind: str, outputs: int = 6) -> Perturbations:
    if kind == "products":
        return doubled(product_directions(1, 2, 4, 3, outputs, WIDTH))
    return doubled(directions(1, 2, 9, outputs, WIDTH, rank=int(kind[-1])))


def scores_of(scorer: Scorer, weight: Tensor, pools: Pools, noise: Perturbations, sigma: float) -> Tensor:
    return torch.cat([scores for _, scores in scorer.blocks(weight, pools, noise, sigma)])


def materialised(perturbations: Perturbations) -> Tensor:
    """Every direction as a matrix, ``(M, D_out, D_in)``, from its factors alone."""
    if isinstance(perturbations, ProductDirections):
        return torch.stack([torch.outer(a, b) for b in perturbations.b for a in perturbations.a])
    sums: Tensor = torch.einsum("mko,mki->moi", perturbations.a, perturbations.b)
    return sums * perturbations.scale


def by_hand(weight: Tensor, pools: Pools, similarity: Scoring) -> Tensor:
    queries, documents = pools.queries @ weight.T, pools.documents @ weight.T
    if similarity == "cosine":
        return functional.cosine_similarity(queries.unsqueeze(1), documents, dim=2, eps=0)
    return (queries.unsqueeze(1) * documents).sum(dim=2)


@pytest.mark.parametrize("outputs", [2, 6, 11])
@pytest.mark.parametrize("kind", ["rank 1", "rank 3", "products"])
def test_scores_are_those_of_the_perturbed_weights_whatever_the_blocks(
    similarity: Scoring, outputs: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, pools = problem(outputs)
    perturbations, sigma = noise_of(kind, outputs), 0.3
    every = materialised(perturbations)
    expected = [by_hand(weight + sign * sigma * change, pools, similarity) for sign in (1, -1) for change in every]
    found = scores_of(Scorer(similarity), weight, pools, perturbations, sigma)
    scale = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, torch.stack(expected, dim=2), rtol=0, atol=1e-12 * scale)
    monkeypatch.setattr(scoring, "_BLOCK_BYTES", {"cpu": 1})
    parts = [*Scorer(similarity).blocks(weight, pools, perturbations, sigma)]
    assert [(queries.start, queries.stop) for queries, _ in parts] == [(n, n + 1) for n in range(QUERIES)]
    torch.testing.assert_close(torch.cat([scores for _, scores in parts]), found, rtol=0, atol=1e-13 * scale)


def test_no_noise_leaves_the_base_scores(similarity: Scoring) -> None:
    weight, pools = problem()
    found = scores_of(Scorer(similarity), weight, pools, noise_of("rank 3"), 0.0)
    expected = base_scores(weight, pools, similarity)
    torch.testing.assert_close(expected, by_hand(weight, pools, similarity), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, expected.unsqueeze(2).expand_as(found), rtol=0, atol=1e-13)


def test_padding_scores_minus_infinity(similarity: Scoring) -> None:
    weight, pools = problem()
    valid = torch.ones(QUERIES, SIZE, dtype=torch.bool)
    valid[0, 3:] = valid[4, 1:] = False
    documents = pools.documents.masked_fill(~valid.unsqueeze(2), 0)
    padded = Pools(pools.queries, documents, valid)
    found = scores_of(Scorer(similarity), weight, padded, noise_of("rank 1"), 0.3)
    assert bool((found[~valid] == -torch.inf).all())
    torch.testing.assert_close(
        found[valid], scores_of(Scorer(similarity), weight, pools, noise_of("rank 1"), 0.3)[valid]
    )
    assert bool((base_scores(weight, padded, similarity)[~valid] == -torch.inf).all())


def test_a_vector_of_length_zero_scores_zero(similarity: Scoring) -> None:
    weight, pools = problem()
    documents, queries = pools.documents.clone(), pools.queries.clone()
    documents[2, 1] = queries[3] = documents[3, 0] = 0
    found = scores_of(Scorer(similarity), weight, Pools(queries, documents), noise_of("rank 3"), 0.3)
    assert bool((found[2, 1] == 0).all())
    assert bool((found[3] == 0).all())


def test_fewer_bits_agree_with_float64(similarity: Scoring) -> None:
    weight, pools = problem(11, torch.float32)
    noise = directions(0, 0, 50, 11, WIDTH)
    found = scores_of(Scorer(similarity), weight, pools, noise, 0.01)
    doubles = Pools(pools.queries.double(), pools.documents.double())
    exact = scores_of(Scorer(similarity), weight.double(), doubles, doubled(noise), 0.01)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5 * max(1.0, float(exact.abs().max())))
    low, base = Scorer(similarity, gemm_dtype=torch.bfloat16), base_scores(weight, pools, similarity).unsqueeze(2)
    unmoved = scores_of(low, weight, pools, noise, 0.0)
    torch.testing.assert_close(unmoved, base.expand_as(unmoved), rtol=0, atol=1e-5)  # base scores stay exact
    moved = scores_of(low, weight, pools, noise, 0.01)
    assert 0 < float((moved - found).abs().max()) < 0.03 * float((found - base).abs().max())


def test_a_diverged_weight_is_no_ranking(similarity: Scoring) -> None:
    weight, pools = problem()
    weight[0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        scores_of(Scorer(similarity), weight, pools, noise_of("rank 1"), 0.1)
    with pytest.raises(DataError, match="not finite"):
        base_scores(weight, pools, similarity)
