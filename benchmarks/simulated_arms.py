"""Simulated retrieval experiments whose true means are known exactly; for ``tir_coverage.py`` beside this file.

Every query has a difficulty that all arms share, a part of its own under each arm, and noise that each training run
draws again; a training run also shifts all its scores by one number. These are normal variables. Graded scores are cut
to 0 and 1, where many end, as nDCG@10 and MRR@10 do; 0/1 scores say whether the variable is above 0, as Success@5 does.
An arm's mean over all possible seeds and queries is exactly the one that is asked for.

Where seeds pair, half of the variance of a run's shift and half of its noise are common to the runs of one seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

MEAN, SCORE_SD = 0.6, 0.36
"""Of graded scores, under the specialist: a tenth of them is 0 then, and a quarter 1."""

PAIR_SHARE, SUITE_SHARE = 0.5, 0.5
"""Shares of variances: what runs of one seed have in common where seeds pair, and what a run's shifts on several
datasets have in common."""

Array: TypeAlias = NDArray[np.float64]
Kind = Literal["graded", "0/1"]

RUN_SHARE: dict[Kind, float] = {"graded": 0.5, "0/1": 0.25}
"""What another training run draws again of the hidden variance between arms on a query: half of the scores' variance.
Two runs whose hidden variables differ by v disagree on 0/1 scores in proportion to the square root of v."""


@dataclass(frozen=True)
class World:
    """The normal variables behind the scores on one dataset.

    Attributes:
        difference_sd: standard deviation over queries of the difference between two runs of two arms, as a fraction of
            the specialist's mean.
        seed_sd: standard deviation of an arm's mean score over training runs.
        kind: whether scores are graded or 0/1.
        mean: of the specialist.
        score_sd: standard deviation of graded scores over queries.
    """

    difference_sd: float
    seed_sd: float
    kind: Kind = "graded"
    mean: float = MEAN
    score_sd: float = SCORE_SD

    @cached_property
    def total_sd(self) -> float:
        """Gives graded scores their standard deviation; that of 0/1 scores hangs on the mean alone."""
        if self.kind == "0/1":
            return 1.0
        return float(brentq(lambda sd: cut_sd(self.centre(self.mean, sd), sd) - self.score_sd, 0.05, 3.0))

    @cached_property
    def arm_sd(self) -> float:
        """Of one arm's part of a query, own and drawn again; found by simulation, the same numbers for every guess."""
        normals = np.random.default_rng(0).standard_normal((3, 50_000))
        centre = self.centre(self.mean)

        def excess(arm_sd: float) -> float:
            shared = centre + math.sqrt(self.total_sd**2 - arm_sd**2) * normals[0]
            difference = np.diff(self.scores(shared + arm_sd * normals[1:]), axis=0)
            return float(difference.std()) - self.difference_sd * self.mean

        return float(brentq(excess, 0.0, self.total_sd, xtol=1e-4))

    @cached_property
    def shift_sd(self) -> float:
        """Moves an arm's mean score by ``seed_sd``: scores that are cut do not move."""
        centre = self.centre(self.mean)
        if self.kind == "0/1":
            density = math.exp(-((centre / self.total_sd) ** 2) / 2.0) / (self.total_sd * math.sqrt(2.0 * math.pi))
            return self.seed_sd / density
        uncut = ndtr((1.0 - centre) / self.total_sd) - ndtr(-centre / self.total_sd)
        return float(self.seed_sd / uncut)

    def centre(self, mean: float, sd: float | None = None) -> float:
        """Return where the normal variables must lie so that the scores have this mean."""
        sd = self.total_sd if sd is None else sd

        def excess(centre: float) -> float:
            return (cut_moments(centre, sd)[0] if self.kind == "graded" else float(ndtr(centre / sd))) - mean

        return float(brentq(excess, -20.0, 20.0))

    def scores(self, hidden: Array) -> Array:
        """Return the scores that normal variables stand for."""
        return np.clip(hidden, 0.0, 1.0) if self.kind == "graded" else (hidden > 0.0).astype(np.float64)


def draw(
    worlds: Sequence[World], sizes: Sequence[int], runs: Sequence[int], rng: np.random.Generator, *, paired: bool
) -> list[list[Array]]:
    """Draw the normal variables of one experiment, around 0.

    Args:
        worlds: one a dataset.
        sizes: queries of each dataset.
        runs: training runs of each arm; 0 for an arm without seeds, which has one row and no shift.
        rng: where the random numbers come from.
        paired: whether runs of one number belong together.

    Returns:
        By dataset and arm, ``(runs, queries)``.
    """
    shifts = _shifts(len(worlds), runs, rng, paired=paired)
    return [
        _on_one_dataset(world, queries, [of_arm[place] for of_arm in shifts], runs, rng, paired=paired)
        for place, (world, queries) in enumerate(zip(worlds, sizes, strict=True))
    ]


def cut_moments(centre: float, sd: float) -> tuple[float, float]:
    """Return mean and mean square of a normal variable cut to 0 and 1."""
    low, high = -centre / sd, (1.0 - centre) / sd
    inside = ndtr(high) - ndtr(low)
    density_low, density_high = (math.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi) for z in (low, high))
    above = 1.0 - ndtr(high)
    mean = centre * inside + sd * (density_low - density_high) + above
    square = (centre**2 + sd**2) * inside + sd * (centre * density_low - (1.0 + centre) * density_high) + above
    return float(mean), float(square)


def cut_sd(centre: float, sd: float) -> float:
    """Return the standard deviation of a normal variable cut to 0 and 1."""
    mean, square = cut_moments(centre, sd)
    return math.sqrt(square - mean**2)


def _shifts(datasets: int, runs: Sequence[int], rng: np.random.Generator, *, paired: bool) -> list[Array]:
    """Draw every run's shift on every dataset in standard deviations, ``(datasets, runs)`` for each arm."""

    def drawn(number: int) -> Array:
        return _mixed(rng.standard_normal(number), rng.standard_normal((datasets, number)), SUITE_SHARE)

    alone = [drawn(number) for number in runs]
    if not paired:
        return alone
    common = drawn(max(runs))
    return [_mixed(common[:, :number], of_arm, PAIR_SHARE) for number, of_arm in zip(runs, alone, strict=True)]


def _on_one_dataset(
    world: World, queries: int, shifts: Sequence[Array], runs: Sequence[int], rng: np.random.Generator, *, paired: bool
) -> list[Array]:
    shared_sd = math.sqrt(world.total_sd**2 - world.arm_sd**2 - world.shift_sd**2)
    anew_share = RUN_SHARE[world.kind]
    own_sd, anew_sd = (world.arm_sd * math.sqrt(share) for share in (1.0 - anew_share, anew_share))
    shared = shared_sd * rng.standard_normal(queries)
    common = rng.standard_normal((max(runs), queries)) if paired else None
    arms = []
    for number, shift in zip(runs, shifts, strict=True):
        again = rng.standard_normal((max(1, number), queries))
        if common is not None and number:
            again = _mixed(common[:number], again, PAIR_SHARE)
        # without a shift, each query moves by itself as far, so that cut scores keep their mean
        moved = shift[:, None] if number else rng.standard_normal((1, queries))
        arms.append(shared + own_sd * rng.standard_normal(queries) + anew_sd * again + world.shift_sd * moved)
    return arms


def _mixed(first: Array, second: Array, share: float) -> Array:
    """Add two normal variables so that the first has this share of the variance, which stays 1."""
    return math.sqrt(share) * first + math.sqrt(1.0 - share) * second
