"""Closed forms against scikit-learn and scipy, and ranks against trec_eval on the same scores, ties included."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes, sqrtm
from sklearn.covariance import ledoit_wolf
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import Ridge
from support.caption_pairs import latent_pairs, pairs_of

from unimoe.metrics import score_run
from unimoe.retrieval.dense import search
from unimoe.studies.translator.evaluation import image_ranks, rank_values
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_cca, fit_geometry, fit_ridge


@pytest.mark.parametrize("alpha", [0.0, 0.1, 30.0, 1e5])
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


@pytest.mark.parametrize("rows", [10, 40, 2000])
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


@pytest.mark.parametrize("block", [1, 7, 64])
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
