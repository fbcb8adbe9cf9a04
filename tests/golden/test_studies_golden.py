"""Studies by hand and against peers: heads and their evolution; the translator's closed forms, losses and ranks.

The nDCG of every perturbation of a head is compared with pytrec_eval's in tests/property.
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
from support.studies import doubled
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from unimoe.metrics import score_run
from unimoe.retrieval.dense import search
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.method import estimate
from unimoe.studies.heads.eggroll.noise import directions, product_directions
from unimoe.studies.heads.methods import head_loss
from unimoe.studies.heads.model import head_scores, initial_weight
from unimoe.studies.translator.evaluation import image_ranks, rank_values
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_cca, fit_geometry, fit_ridge
from unimoe.studies.translator.training.objective import agreement_loss, contrastive_loss, cosine_loss, moment_loss

pytestmark = pytest.mark.usefixtures("one_thread")

E, L2 = math.exp, math.log2


def loss_of(name: str, scores: Tensor, grades: Tensor, temperature: float, k: int = 10) -> float:
    config, valid = TrainConfig(temperature=temperature, ndcg_k=k), torch.ones_like(scores, dtype=torch.bool)
    return float(head_loss(name, scores, grades, valid, config, torch.Generator().manual_seed(0)))


def test_infonce_by_hand() -> None:
    """Two positives: each against the one negative and itself, never against the other."""
    first, second = -math.log(E(2) / (E(2) + E(1))), -math.log(E(3) / (E(3) + E(1)))
    found = loss_of("infonce", torch.tensor([[0.2, 0.1, 0.3]]), torch.tensor([[1.0, 0.0, 2.0]]), 0.1)
    assert found == pytest.approx((first + second) / 2, rel=1e-5)


def test_approxndcg_by_hand() -> None:
    """Rank of document i: 1 + the sum over the others of sigmoid((s_j - s_i) / temperature)."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + E(-x))

    first, third = 1 + sigmoid(2) + sigmoid(4), 1 + sigmoid(-4) + sigmoid(-2)
    value = (2 / L2(1 + first) + 1 / L2(1 + third)) / (2 / L2(2) + 1 / L2(3))
    found = loss_of("approxndcg", torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 1.0]]), 0.5)
    assert found == pytest.approx(1 - value, rel=1e-5)
    sharp = loss_of("approxndcg", torch.tensor([[0.3, 0.1, 0.2]]), torch.tensor([[0.0, 1.0, 2.0]]), 1e-3)
    assert 1 - sharp == pytest.approx((1 / L2(4) + 2 / L2(3)) / (2 + 1 / L2(3)), abs=1e-5), "nDCG itself"


def test_lambdaloss_by_hand_counts_only_pairs_that_touch_the_first_k() -> None:
    """One pair, the negative ahead: weight (10 delta + swap) times the gain, cost log2(1 + e^difference)."""
    delta = swap = 1 - 1 / L2(3)
    found = loss_of("lambdaloss", torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]), 1.0)
    assert found == pytest.approx((10 * delta + swap) * L2(1 + E(1)), rel=1e-5)
    scores, grades = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    moved = scores - torch.tensor([[0.0, 0.0, 0.0, 0.5]])
    assert loss_of("lambdaloss", moved, grades, 1.0, k=1) == loss_of("lambdaloss", scores, grades, 1.0, k=1)
    assert loss_of("lambdaloss", moved, grades, 1.0, k=4) != loss_of("lambdaloss", scores, grades, 1.0, k=4)


def test_scores_of_a_head_by_hand() -> None:
    weight = torch.tensor([[1.0, 0.0, 2.0]])
    queries, documents = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[[1.0, 5.0, 0.0], [0.0, 1.0, -1.0]]])
    assert head_scores(weight, queries, documents, "dot").tolist() == [[3.0, -6.0]]
    assert head_scores(weight, queries, documents, "cosine").tolist() == [[1.0, -1.0]]


def test_the_first_weights_by_pca_keep_what_documents_differ_in() -> None:
    """Documents in a plane: two outputs keep every dot product."""
    generator = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(6, 2, generator=generator)).Q
    documents = torch.randn(20, 2, generator=generator) @ plane.T
    weight = initial_weight("pca", documents, 2, seed=0)
    assert torch.allclose((documents @ weight.T) @ (documents @ weight.T).T, documents @ documents.T, atol=1e-5)
    assert torch.allclose(weight @ weight.T, torch.eye(2), atol=1e-6)


F64 = torch.float64


@pytest.mark.parametrize("rank", [1, 4])
def test_the_estimate_of_a_linear_objective_is_its_gradient_in_the_mean(rank: int) -> None:
    """With ``f(W) = <G, W>`` the mean is G, at every sigma; entries err by at most ``sqrt(2.. 6) |G| / sqrt(M)``."""
    count, truth = 60_000, torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    noise = doubled(directions(5, 0, count, 3, 4, rank=rank))
    change = torch.einsum("mko,od,mkd->m", noise.a, truth, noise.b) / rank**0.5
    for sigma in (0.01, 3.0):
        found = estimate(noise, torch.cat([sigma * change, -sigma * change]), sigma)
        torch.testing.assert_close(found, truth, rtol=0, atol=5 * math.sqrt(6 / count) * float(truth.norm()))


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
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-6 / temperature)


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
    assert contrastive_loss(anchors.float(), ids, bank.float(), None, 1e-3, prior=prior).isfinite()


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
