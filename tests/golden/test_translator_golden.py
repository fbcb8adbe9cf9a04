"""The translator: closed forms against scikit-learn and scipy, losses against pytorch-metric-learning and by hand.

Its ranks are those of trec_eval on the same scores, ties included.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from scipy.linalg import orthogonal_procrustes, sqrtm
from sklearn.covariance import ledoit_wolf
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import Ridge
from support.caption_pairs import latent_pairs, pairs_of
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from unimoe.metrics import score_run
from unimoe.retrieval.dense import search
from unimoe.studies.translator.evaluation import image_ranks, rank_values
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_cca, fit_geometry, fit_ridge
from unimoe.studies.translator.training.objective import (
    agreement_loss,
    contrastive_loss,
    cosine_loss,
    moment_loss,
)


@pytest.mark.parametrize("alpha", [0.0, 30.0])
def test_ridge_is_sklearns(alpha: float) -> None:
    """Images have different numbers of captions."""
    pairs = latent_pairs()
    kept = np.flatnonzero((np.arange(len(pairs)) % 5 == 0) | (pairs.image_of > 100))
    pairs = pairs_of(pairs.captions[kept], pairs.images, pairs.image_of[kept])
    oracle = Ridge(alpha, solver="cholesky").fit(
        pairs.captions.astype(float), pairs.images[pairs.image_of].astype(float)
    )
    fitted = fit_ridge(PairMoments(pairs), alpha)
    assert np.allclose(fitted.weight, oracle.coef_, rtol=1e-8, atol=1e-10)
    assert np.allclose(fitted.bias, oracle.intercept_, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rows", [10, 2000])
def test_shrinkage_is_sklearns_ledoit_wolf(rows: int) -> None:
    rng = np.random.default_rng(rows)
    vectors = rng.standard_normal((rows, 32)) @ rng.standard_normal((32, 32)) + 5
    pairs = latent_pairs(images=rows, each=1)
    pairs.images[:] = vectors
    moments = PairMoments(pairs).images
    expected, intensity = ledoit_wolf(pairs.images.astype(float))
    assert moments.ledoit_wolf == pytest.approx(intensity, rel=1e-6)
    root, inverse, _ = moments.roots("ledoit_wolf")
    assert np.allclose(root @ root, expected, atol=1e-6)
    assert np.allclose(inverse @ expected @ inverse, np.eye(32), atol=1e-6)


def test_cca_is_sklearns() -> None:
    """One caption an image, no shrinkage: the same correlations, and projections equal up to sign and scale."""
    pairs = latent_pairs(images=800, each=1, dims=(7, 6), latent=3)
    fitted = fit_cca(PairMoments(pairs), components=3, power=0.0, shrinkage=0.0)
    captions, images = pairs.captions.astype(float), pairs.images.astype(float)
    sides = CCA(3, scale=False, max_iter=5000, tol=1e-13).fit_transform(captions, images)
    ours = (
        captions @ fitted.caption_weight.T + fitted.caption_bias,
        images @ fitted.image_weight.T + fitted.image_bias,
    )
    for component in range(3):
        expected = np.corrcoef(sides[0][:, component], sides[1][:, component])[0, 1]
        assert fitted.correlations[component] == pytest.approx(expected, abs=1e-6)
        for own, theirs in zip(ours, sides, strict=True):
            assert abs(np.corrcoef(own[:, component], theirs[:, component])[0, 1]) == pytest.approx(1, abs=1e-5)
    assert all(first >= second for first, second in pairwise(fitted.correlations))


def test_the_pure_rotation_is_scipys_procrustes_between_whitened_sides() -> None:
    pairs = latent_pairs(images=500, each=1, dims=(9, 9))
    captions, images = pairs.captions.astype(float), pairs.images.astype(float)
    root_of_captions, root = (sqrtm(np.cov(side.T, bias=True)) for side in (captions, images))
    inverse = np.linalg.inv(root_of_captions)
    left = (captions - captions.mean(0)) @ inverse
    right = (images - images.mean(0)) @ np.linalg.inv(root)
    rotation, _ = orthogonal_procrustes(left, right)
    fitted = fit_geometry(PairMoments(pairs), power=0.0, shrinkage=0.0)
    assert np.allclose(fitted.weight, (inverse @ rotation @ root).T, atol=1e-8)


def test_with_all_of_s_the_geometry_map_is_least_squares() -> None:
    """One caption an image, so that both sides' covariances are those of the pairs."""
    moments = PairMoments(latent_pairs(each=1))
    geometry = fit_geometry(moments, power=1.0, shrinkage=0.0)
    assert np.allclose(geometry.weight, fit_ridge(moments, 0.0).weight, atol=1e-8)


@pytest.mark.parametrize("block", [7, 64])
def test_ranks_are_trec_evals_ties_included(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many images are copies, and many coordinates are whole numbers, so that scores tie within and across blocks."""
    monkeypatch.setattr("unimoe.studies.translator.evaluation._CELLS", 90 * block)
    rng = np.random.default_rng(3)
    gallery = rng.integers(-1, 2, (90, 3)).astype(np.float32)
    captions = rng.integers(-1, 2, (60, 3)).astype(np.float32)
    image_of = rng.integers(0, 90, 60)
    image_ids = [f"i{key}" for key in rng.permutation(90)]
    caption_ids = [f"c{row}" for row in range(60)]
    ranks = image_ranks(captions, gallery, image_of, image_ids=image_ids)
    run = search(captions, caption_ids, gallery, image_ids, 90)
    qrels = {key: {image_ids[row]: 1} for key, row in zip(caption_ids, image_of.tolist(), strict=True)}
    scores = score_run(qrels, run, ("mrr", "recall@1", "recall@5", "recall@10"))
    values = rank_values(ranks)
    assert len(set(ranks.tolist())) > 20
    for metric, by_caption in scores.per_query.items():
        assert values[metric].tolist() == [by_caption[key] for key in caption_ids], metric


Sides = tuple[Tensor, Tensor, Tensor, Tensor]


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


@pytest.fixture
def sides() -> Sides:
    """Anchors and candidates of ten images; every image is there once at least, some several times."""
    generator = torch.Generator().manual_seed(1)
    anchor_ids = torch.randint(0, 10, (12,), generator=generator)
    candidate_ids = torch.cat([torch.arange(10), torch.randint(0, 10, (30,), generator=generator)])
    return units(12, 8).requires_grad_(), anchor_ids, units(40, 8, seed=2).requires_grad_(), candidate_ids


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_several_positives_are_supcon(sides: Sides, temperature: float) -> None:
    anchors, anchor_ids, candidates, candidate_ids = sides
    oracle = SupConLoss(temperature, distance=DotProductSimilarity(normalize_embeddings=False), reducer=MeanReducer())
    expected = oracle(anchors, anchor_ids, ref_emb=candidates, ref_labels=candidate_ids)
    found = contrastive_loss(anchors, anchor_ids, candidates, candidate_ids, temperature)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(found, (anchors, candidates)),
        torch.autograd.grad(expected, (anchors, candidates)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "temperature"), [(torch.float64, 0.07), (torch.float32, 1e-3)])
def test_one_positive_over_the_full_bank_is_cross_entropy_and_overflows_nothing(
    dtype: torch.dtype, temperature: float
) -> None:
    anchors, bank, ids = units(12, 8).to(dtype).requires_grad_(), units(40, 8, seed=2).to(dtype), torch.arange(12) * 3
    expected = cross_entropy(anchors @ bank.T / temperature, ids)
    found = contrastive_loss(anchors, ids, bank, None, temperature)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(3.0 * loss, anchors)[0] for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 / temperature)


def test_further_positives_are_candidates_of_their_anchor_alone() -> None:
    anchors, ids, bank = units(3, 4).requires_grad_(), torch.arange(3), units(6, 4, seed=2)
    vectors, valid = units(3, 2, 4, seed=3), torch.tensor([[True, True], [True, False], [False, False]])
    rows = []
    for row in range(3):
        own = vectors[row][valid[row]]
        labels = torch.cat([torch.arange(6), torch.full((len(own),), row)])
        rows.append(contrastive_loss(anchors[row : row + 1], ids[row : row + 1], torch.cat([bank, own]), labels, 0.2))
    expected = torch.stack(rows).mean()
    found = contrastive_loss(anchors, ids, bank, None, 0.2, extra=(vectors, valid))
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, anchors), torch.autograd.grad(expected, anchors))


def chuang(scores: Tensor, temperature: float, prior: float) -> Tensor:
    """One positive, column 0: N * max((mean negative - prior * positive) / (1 - prior), e^(-1/t))."""
    exponentials = (scores / temperature).exp()
    positive, negative = exponentials[:, 0], exponentials[:, 1:]
    estimate = (negative.mean(1) - prior * positive) / (1 - prior)
    total = negative.shape[1] * torch.clamp(estimate, min=math.exp(-1 / temperature))
    return -(positive / (positive + total)).log().mean()


@pytest.mark.parametrize("prior", [0.0, 0.01, 0.1, 0.6])
def test_the_debiased_loss_is_chuangs(prior: float) -> None:
    bank = units(30, 4, seed=5)
    ids = torch.arange(0, 30, 3)
    anchors = normalize(bank[ids] + 0.5 * units(10, 4, seed=6), dim=1).requires_grad_()
    scores = anchors @ bank.T
    others = torch.stack([torch.tensor([i, *(j for j in range(30) if j != i)]) for i in ids.tolist()])
    expected = chuang(scores.gather(1, others), 0.5, prior)
    found = contrastive_loss(anchors, ids, bank, None, 0.5, prior=prior)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(torch.autograd.grad(found, anchors), torch.autograd.grad(expected, anchors))


def test_the_other_terms_by_hand() -> None:
    predicted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])
    assert cosine_loss(predicted, targets).item() == pytest.approx(1 - (1 + 0 + 0.96) / 3)
    # Means (.5333, .6) and (.9333, .2): .16 + .16. Deviations .41096, .43205 and .09428, .28284: .10029 + .02226.
    assert moment_loss(predicted, targets).item() == pytest.approx(0.32 + 0.12255, abs=1e-4)
    # Images 7, 7, 9: the mean of the first two is (.5, .5), each .5 away in square; the third has nobody to agree with.
    value, pairs = agreement_loss(predicted, torch.tensor([7, 7, 9]))
    assert value.item() == pytest.approx(0.5)
    assert pairs == 1
    assert agreement_loss(predicted, torch.tensor([1, 2, 3]))[0].item() == 0.0
