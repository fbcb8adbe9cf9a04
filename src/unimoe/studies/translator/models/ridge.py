"""Ridge regression from captions to images, its strength chosen by cross-validation grouped by image.

The penalty is that of scikit-learn's ``Ridge``: ``|Y - X B|² + alpha |B|²`` with an intercept that is not penalised.
One eigendecomposition a fold serves every alpha.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unimoe.errors import UsageError
from unimoe.studies.translator.models.choosing import held_out_mrr, scored_images
from unimoe.studies.translator.models.interface import LinearMap
from unimoe.studies.translator.models.statistics import (
    Doubles,
    PairArrays,
    PairStatistics,
    fold_statistics,
    total,
)

Criterion = Literal["mrr", "r2"]

RELATIVE_ALPHAS = tuple(float(power) for power in np.logspace(-5, 2, 15))
"""Penalties tried by default, in units of the mean eigenvalue of the captions' sum of squares."""


@dataclass(frozen=True)
class AlphaChoice:
    """What cross-validation found.

    Attributes:
        alpha: the best, the largest of equals.
        alphas: all that were tried, ascending.
        scores: the criterion by alpha, mean over folds.
        criterion: ``mrr`` or ``r2``.
        folds: how many.
    """

    alpha: float
    alphas: tuple[float, ...]
    scores: tuple[float, ...]
    criterion: Criterion
    folds: int

    @property
    def note(self) -> str:
        """One sentence, which says so where the best is the first or the last tried."""
        name = "MRR" if self.criterion == "mrr" else "R2"
        edge = {self.alphas[0]: ", the lowest tried", self.alphas[-1]: ", the highest tried"}.get(self.alpha, "")
        return (
            f"ridge alpha {self.alpha:.4g}{edge}: best {name} of {self.folds} folds of images ({max(self.scores):.4f})"
        )


def fit_ridge(statistics: PairStatistics, alpha: float, *, centred_cosine: bool = True) -> LinearMap:
    """Ridge regression with one penalty.

    Args:
        statistics: of the pairs.
        alpha: the penalty; 0 is least squares, by the pseudo-inverse where captions span no more than a subspace.
        centred_cosine: compare after the images' mean is subtracted, which ranks far better than the plain cosine.

    Raises:
        UsageError: a negative penalty.
    """
    if not alpha >= 0:
        raise UsageError(f"ridge alpha {alpha:g}: use 0 or more")
    return next(_fit_all(statistics, [alpha], centred_cosine))


def cross_validated_ridge(
    pairs: PairArrays,
    *,
    alphas: Sequence[float] | None = None,
    folds: int = 5,
    seed: int = 0,
    criterion: Criterion = "mrr",
    centred_cosine: bool = True,
) -> tuple[LinearMap, AlphaChoice]:
    """Ridge regression with the penalty of the best cross-validated score, fitted to all pairs.

    Args:
        pairs: captions and images.
        alphas: penalties to try; by default 15 relative to the captions' mean eigenvalue.
        folds: parts of the images; all captions of an image are in one.
        seed: of the parts.
        criterion: ``mrr`` ranks the captions of the part left out against its images, ``SCORED_IMAGES`` at most, as the
            translator will be judged; ``r2`` is the part of the variance explained there, needs no second look at the
            captions, and is right for data too large for that.
        centred_cosine: see ``fit_ridge``; ``mrr`` ranks that way.

    Raises:
        UsageError: no penalty, a negative one, or folds that the images do not suffice for.
        DataError: there are no pairs, or shapes do not fit.
    """
    parts = fold_statistics(pairs, folds, seed)
    whole = total(parts)
    tried = _alphas(whole, alphas)
    if criterion == "r2":
        scores = np.mean([_explained(whole - part, part, tried) for part in parts], axis=0)
    else:
        per_fold = []
        for part, images in zip(parts, scored_images(pairs, folds, seed), strict=True):
            maps = _fit_all(whole - part, tried, centred_cosine)
            per_fold.append([held_out_mrr(fitted, pairs, images) for fitted in maps])
        scores = np.mean(per_fold, axis=0)
    best = len(scores) - 1 - int(np.argmax(scores[::-1]))
    choice = AlphaChoice(tried[best], tuple(tried), tuple(map(float, scores)), criterion, folds)
    fitted = fit_ridge(whole, choice.alpha, centred_cosine=centred_cosine)
    return replace(fitted, notes=(choice.note, *fitted.notes)), choice


def _fit_all(statistics: PairStatistics, alphas: Sequence[float], centred_cosine: bool) -> Iterator[LinearMap]:
    """A map for every penalty, one at a time, from one eigendecomposition."""
    solver, images = _Solver(statistics), statistics.images
    notes: tuple[str, ...] = ()
    if images.count <= len(images.total):
        notes = (
            f"{images.count:,} images in {len(images.total):,} dimensions: the map reaches only the space they span",
        )
    for alpha in alphas:
        weight = ((solver.basis * solver.gains(alpha)) @ solver.rotated).T.copy()
        bias = statistics.paired_mean - weight @ statistics.captions.mean
        yield LinearMap(weight, bias, images.mean if centred_cosine else None, notes)


class _Solver:
    """The normal equations in the eigenbasis of the captions' centred sum of squares, where every alpha is a division.

    Attributes:
        values: ``(Dx,)`` eigenvalues, not negative.
        basis: ``(Dx, Dx)`` eigenvectors in columns.
        rotated: ``(Dx, Dy)`` centred sum of products, rotated into the basis.
    """

    def __init__(self, statistics: PairStatistics) -> None:
        count = statistics.captions.count
        values, self.basis = statistics.captions.spectrum
        self.values: Doubles = count * values
        self.rotated: Doubles = self.basis.T @ (count * statistics.cross_covariance)

    def gains(self, alpha: float) -> Doubles:
        """``1 / (eigenvalue + alpha)``; without a penalty 0 for directions in which captions do not vary."""
        penalised = self.values + alpha
        lowest = self.values[-1] * len(self.values) * np.finfo(np.float64).eps
        kept = self.values > lowest if alpha == 0 else penalised > 0
        return np.divide(1.0, penalised, out=np.zeros_like(penalised), where=kept)


def _explained(train: PairStatistics, held_out: PairStatistics, alphas: Sequence[float]) -> Doubles:
    """R2 over all dimensions together of the part left out, by alpha, from its sums alone.

    With sums centred on the training means, ``|Y - X B|² = tr Y'Y - 2 tr B'X'Y + tr B'X'X B``; in the eigenbasis the
    last two terms are a sum and a quadratic form of the gains.
    """
    solver = _Solver(train)
    count, x, y = held_out.captions.count, train.captions.mean, train.paired_mean
    x_sum, y_sum = held_out.captions.total, held_out.paired_total
    square = held_out.captions.square - np.outer(x, x_sum) - np.outer(x_sum, x) + count * np.outer(x, x)
    cross = held_out.cross - np.outer(x, y_sum) - np.outer(x_sum, y) + count * np.outer(x, y)
    around_train = held_out.paired_square - 2 * float(y @ y_sum) + count * float(y @ y)
    own_mean = held_out.paired_mean
    variance = held_out.paired_square - count * float(own_mean @ own_mean)
    linear = np.einsum("ij,ij->i", solver.basis.T @ cross, solver.rotated)
    quadratic = (solver.basis.T @ square @ solver.basis) * (solver.rotated @ solver.rotated.T)
    errors = []
    for alpha in alphas:
        gains = solver.gains(alpha)
        errors.append(around_train - 2 * float(gains @ linear) + float(gains @ quadratic @ gains))
    return 1.0 - np.array(errors) / variance if variance > 0 else np.zeros(len(errors))


def _alphas(statistics: PairStatistics, alphas: Sequence[float] | None) -> list[float]:
    if alphas is None:
        captions = statistics.captions
        scale = captions.count * float(np.trace(captions.covariance)) / len(captions.total)
        return [scale * relative for relative in RELATIVE_ALPHAS]
    if not alphas or not all(alpha >= 0 for alpha in alphas):
        raise UsageError(f"ridge alphas {list(alphas)}: give one at least, none of them negative")
    return sorted(set(map(float, alphas)))
