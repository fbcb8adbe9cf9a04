"""Closed forms against weights that are built, one perturbation after the other."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.eggroll import products, scoring
from unimoe.studies.heads.eggroll.ndcg import Metric, PoolMetric
from unimoe.studies.heads.eggroll.noise import directions, product_directions
from unimoe.studies.heads.eggroll.perturbations import Perturbations, ProductDirections
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.scoring import Scorer, Similarity, base_scores

pytestmark = pytest.mark.usefixtures("one_thread")

SIMILARITIES = get_args(Similarity)
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


def by_hand(weight: Tensor, pools: Pools, similarity: Similarity) -> Tensor:
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
@pytest.mark.parametrize("way", ["machine code", "tensors"])
def test_scores_are_those_of_the_perturbed_weights(
    similarity: Similarity, outputs: int, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two outputs are few enough that ``W d`` is the shorter way; at eleven the directions are projected first."""
    if way == "tensors":
        monkeypatch.setattr(scoring, "takes_machine_code", lambda _: False)
    weight, pools = problem(outputs)
    perturbations, sigma = every_set(outputs)[kind], 0.3
    every = materialised(perturbations)
    expected = [by_hand(weight + sign * sigma * change, pools, similarity) for sign in (1, -1) for change in every]
    found = Scorer(similarity).scores(weight, pools, perturbations, sigma)
    scale = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, torch.stack(expected, dim=2), rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("kind", ["rank 3", "grid"])
def test_a_metric_without_scores_at_hand_is_that_of_the_scores(
    similarity: Similarity, metric: Metric, kind: str
) -> None:
    """With padding, pools of no relevant document, and blocks of two queries."""
    weight, pools = problem(6)
    valid = torch.arange(SIZE) < torch.tensor([[7], [5], [7], [3], [6]])
    pools = Pools(pools.queries, pools.documents, valid)
    grades = torch.randint(0, 3, (QUERIES, SIZE), generator=torch.Generator().manual_seed(2)) * valid
    grades[2] = 0
    judged = PoolMetric(grades.float(), torch.full((QUERIES,), 4.0), 3, metric=metric, valid=valid, rounds=True)
    perturbations = every_set(6)[kind]
    scorer = Scorer(similarity, block_bytes=2 * SIZE * 2 * 9 * 8)
    found = scorer.rated(weight, pools, perturbations, 0.5, judged)
    assert torch.equal(found, judged.over(scorer.blocks(weight, pools, perturbations, 0.5)))
    assert len(set(found.flatten().tolist())) > 3


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_no_noise_leaves_the_base_scores(similarity: Similarity) -> None:
    weight, pools = problem(6)
    found = Scorer(similarity).scores(weight, pools, every_set(6)["rank 3"], 0.0)
    expected = base_scores(weight, pools, similarity)
    torch.testing.assert_close(expected, by_hand(weight, pools, similarity), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, expected.unsqueeze(2).expand_as(found), rtol=0, atol=1e-13)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", ["rank 3", "grid"])
def test_blocks_change_nothing_and_buffers_are_used_again(similarity: Similarity, kind: str) -> None:
    weight, pools = problem(6)
    perturbations = every_set(6)[kind]
    whole = Scorer(similarity).scores(weight, pools, perturbations, 0.2)
    scorer = Scorer(similarity, block_bytes=1)
    seen = []
    for queries, scores in scorer.blocks(weight, pools, perturbations, 0.2):
        torch.testing.assert_close(scores, whole[queries], rtol=0, atol=1e-13)
        seen.append((queries, scores.data_ptr()))
    assert [(queries.start, queries.stop) for queries, _ in seen] == [(n, n + 1) for n in range(QUERIES)]
    assert len({address for _, address in seen}) == 1
    again = scorer.scores(weight, pools, perturbations, 0.2)
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_padding_scores_minus_infinity(similarity: Similarity) -> None:
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
@pytest.mark.parametrize("queries_at_once", [0, 2, 16])
def test_float32_agrees_with_float64(
    similarity: Similarity, queries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With none at once, base scores are a product of their own, as on a GPU."""
    monkeypatch.setattr(products, "QUERIES_AT_ONCE", queries_at_once)
    weight, pools = problem(11, torch.float32)
    noise, wide = directions(0, 0, 50, 11, WIDTH), directions(0, 0, 50, 11, WIDTH, dtype=torch.float64)
    found = Scorer(similarity).scores(weight, pools, noise, 0.1)
    doubles = Pools(pools.queries.double(), pools.documents.double())
    exact = Scorer(similarity).scores(weight.double(), doubles, wide, 0.1)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_bfloat16_products_keep_exact_base_scores(similarity: Similarity) -> None:
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
def test_a_diverged_weight_is_no_ranking(similarity: Similarity) -> None:
    weight, pools = problem(6)
    weight[0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        Scorer(similarity).scores(weight, pools, every_set(6)["rank 1"], 0.1)
    with pytest.raises(DataError, match="not finite"):
        base_scores(weight, pools, similarity)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match=r"not \(2, 3\) and \(2, 4, 5\)"):
        Pools(torch.zeros(2, 3), torch.zeros(2, 4, 5))
    with pytest.raises(DataError, match="mask of shape"):
        Pools(torch.zeros(2, 5), torch.zeros(2, 4, 5), torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(UsageError, match="similarity 'cos'"):
        Scorer("cos")  # type: ignore[arg-type]
