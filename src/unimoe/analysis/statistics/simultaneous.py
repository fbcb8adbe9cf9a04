"""Statements about many differences at once: max-t over the differences of every two systems.

Each difference keeps its own p (``estimates``), and what is corrected is how many there are. Where all systems were
equal, their means would scatter with one covariance; how small the smallest p of many differences then is comes from
draws of it. So differences that move together cost less than Bonferroni has it (Westfall & Young 1993; Hothorn, Bretz &
Westfall 2008). The covariance follows from the variances of the differences alone: ``cov(i - j, i - k)`` is half of
``V_ij + V_ik - V_jk``, so that seeds, queries, clusters and averages have their part in it as in each difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.variance import Array

_DRAWS = 20_000  # a corrected p of .05 has a standard error of .0015


@dataclass(frozen=True)
class Joint:
    """How the means of equal systems scatter together."""

    draws: Array  # ``(draws, systems)``, up to what all systems share

    def smallest_p(self, sets: Sequence[tuple[int, Sequence[int]]], *, one_sided: bool = False) -> Array:
        """Return the smallest p of each draw, ascending, over the differences of a system from each of some others."""
        largest = np.full(len(self.draws), -np.inf)
        rounding = 1e-6 * self.draws.std(axis=0).max()  # systems that are equal on every query differ by no more
        for system, others in sets:
            gaps = self.draws[:, list(others)] - self.draws[:, [system]]
            spread = np.sqrt((gaps**2).mean(axis=0))
            scaled = gaps / np.where(spread > rounding, spread, np.inf)
            np.maximum(largest, (scaled if one_sided else np.abs(scaled)).max(axis=1), out=largest)
        return np.sort(ndtr(-largest) * (1.0 if one_sided else 2.0))

    @cached_property
    def of_all(self) -> Array:
        """The smallest p of each draw over every two systems."""
        systems = range(self.draws.shape[1])
        return self.smallest_p([(system, systems[system + 1 :]) for system in systems[:-1]])


def joint(variances: Array) -> Joint:
    """Draw means whose differences have these variances, ``(systems, systems)``, by Gower's centring."""
    centring = np.eye(len(variances)) - 1.0 / len(variances)
    values, vectors = np.linalg.eigh(-0.5 * centring @ variances @ centring)
    # Estimated variances may contradict each other a little; then some eigenvalue is below 0.
    scales = np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(0).standard_normal((_DRAWS, len(variances)))
    return Joint(normal @ (vectors * scales).T)


def corrected(p: float, smallest: Array) -> float:
    """Return the chance of a p as small among those of all draws; the observed one counts as a draw, so it is not 0."""
    return max(p, float((1 + np.searchsorted(smallest, p, side="right")) / (len(smallest) + 1)))


def level(smallest: Array) -> float:
    """Return the level for each p: exactly those below it are below .05 once they are corrected."""
    return min(1.0 - LEVEL, float(smallest[math.ceil((1.0 - LEVEL) * (len(smallest) + 1)) - 2]))
