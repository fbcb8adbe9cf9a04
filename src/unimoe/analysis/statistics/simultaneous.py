"""Statements about many differences at once: max-t over the differences of every two systems.

Each difference has its Student's t, and what is corrected is how many there are. Where all systems were equal, their
means would scatter with one covariance; how small the smallest p of many differences then is comes from draws of it. So
differences that move together cost less than Bonferroni has it (Westfall & Young 1993; Hothorn, Bretz & Westfall 2008).
The covariance follows from the variances of the differences alone: ``cov(i - j, i - k)`` is half of
``V_ij + V_ik - V_jk``, so that seeds, queries, clusters and averages have their part in it as in each difference.

A variance over few runs is itself uncertain, and the smallest p often has a variance that was found too small. So
each draw draws the variances of the runs as well, and its p takes them as the data's p takes theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.variance import Array, Terms, total_variance, without_bias

_DRAWS = 20_000  # a corrected p of .05 has a standard error of .0015
_MANY = 1e9  # degrees of freedom of a normal variable


@dataclass(frozen=True)
class Joint:
    """How the means of equal systems scatter together, and how the variances of their runs are found."""

    draws: Array  # ``(draws, systems)``, up to what all systems share
    runs: Array  # ``(draws, runs - 1, systems)``: the sum of squares is the variance of a system's runs as it is found
    freedoms: Array  # ``(systems,)``: runs but one
    fixed: Array  # of every two systems: the part of queries, and what queries and runs both count, ``(2, ...)``
    variances: Array  # of every two systems: that of their difference, ``(systems, systems)``
    paired: NDArray[np.bool_]  # whether the runs of two systems pair
    pooled: bool = False  # whether one variance of a run, found from the runs of all, serves all systems

    def smallest_p(self, sets: Sequence[tuple[int, Sequence[int]]], *, one_sided: bool = False) -> Array:
        """Return the smallest p of each draw, ascending, over the differences of a system from each of some others."""
        furthest = np.full((3, len(self.draws)), -np.inf)  # its place on a normal scale, its t and degrees of freedom
        for system, others in sets:
            normal, t, freedom = self._tests(system, list(others))
            place = (normal if one_sided else np.abs(normal)).argmax(axis=1)[:, None]
            found = np.stack([np.take_along_axis(part, place, axis=1)[:, 0] for part in (normal, t, freedom)])
            found[:2] = found[:2] if one_sided else np.abs(found[:2])
            furthest = np.where(found[0] > furthest[0], found, furthest)
        return np.sort(stdtr(furthest[2], -furthest[1]) * (1.0 if one_sided else 2.0))

    def _tests(self, system: int, others: list[int]) -> tuple[Array, Array, Array]:
        """Return a normal variable for some systems minus another, ``(draws, others)``, Student's t and its freedom.

        The normal variable is Wallace's (1959): it finds the smallest p in a hundredth of the time that all p take.
        """
        gaps = self.draws[:, others] - self.draws[:, [system]]
        scaled = gaps / self._spread[system, others]
        of_first, of_second = self.freedoms[[system]], self.freedoms[others]
        if min(of_first[0], of_second.min()) == _MANY:
            return scaled, scaled, np.broadcast_to(_MANY, scaled.shape)
        first, second = np.broadcast_arrays(self._found[:, [system]], self._found[:, others])
        if (paired := self.paired[system, others]).any():
            apart = ((self.runs[:, :, [system]] - self.runs[:, :, others]) ** 2).sum(axis=1)
            first, second = np.where(paired, apart, first), np.where(paired, 0.0, second)
        query, twice = self.fixed[:, system, others]
        variance = total_variance(query, first + second, twice)
        first, second = first * without_bias(of_first), second * without_bias(of_second)
        total, parts = total_variance(query, first + second, twice), first**2 / of_first + second**2 / of_second
        if self.pooled:  # of two systems with several runs, both parts are the same estimate
            parts = (first + second) ** 2 / np.minimum(of_first, of_second)
        freedom = np.divide(total**2, parts, out=np.full_like(parts, _MANY), where=parts > 0.0)
        freedom = np.clip(freedom, np.minimum(of_first, of_second), _MANY)
        t = scaled * np.sqrt(np.divide(self.variances[system, others], variance, out=variance, where=variance > 0.0))
        normal = np.sign(t) * np.sqrt(freedom * np.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
        return normal, t, freedom

    @cached_property
    def _spread(self) -> Array:
        """How far the draws of every two systems lie apart; infinite for two that are equal on every query."""
        products = self.draws.T @ self.draws / len(self.draws)
        own = np.diagonal(products)
        spread = np.sqrt(np.maximum(0.0, np.add.outer(own, own) - 2.0 * products))
        return np.where(spread > 1e-6 * self.draws.std(axis=0).max(), spread, np.inf)

    @cached_property
    def _found(self) -> Array:
        """The variance of each system's runs as each draw finds it, ``(draws, systems)``."""
        return np.asarray((self.runs**2).sum(axis=1))

    @cached_property
    def of_all(self) -> Array:
        """The smallest p of each draw over every two systems."""
        systems = range(self.draws.shape[1])
        return self.smallest_p([(system, systems[system + 1 :]) for system in systems[:-1]])


def joint(terms: Mapping[tuple[int, int], Terms | None], runs: Sequence[int]) -> Joint:
    """Draw means of equal systems, and variances of their runs, from the terms of every two and the number of runs."""
    number, rng = len(runs), np.random.default_rng(0)
    query, run, twice = np.zeros((3, number, number))
    paired = np.zeros((number, number), dtype=bool)
    for (one, other), of_pair in terms.items():
        both = [one, other], [other, one]
        if of_pair:  # None: the two do not differ
            query[both], run[both], twice[both] = of_pair.query.sum(), of_pair.run.sum(), of_pair.residual.sum()
            paired[both] = len(of_pair.runs) == 1 and min(runs[one], runs[other]) > 1
    # Of runs that pair, a system has no variance of its own: what comes nearest to those of the differences, as sums.
    several = np.array(runs) > 1
    own = np.maximum(0.0, (run.sum(axis=0) - run.sum() / 2.0 / (number - 1)) / max(1, number - 2)) * several
    variances = total_variance(query, np.add.outer(own, own), twice) * (1.0 - np.eye(number))
    centring = np.eye(number) - 1.0 / number
    values, vectors = np.linalg.eigh(-0.5 * centring @ variances @ centring)
    # Estimated variances may contradict each other a little; then some eigenvalue is below 0. The symmetric root is the
    # same whatever eigenvectors a processor finds for values that are equal, as those of like systems are.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    draws = rng.standard_normal((_DRAWS, number)) @ root
    pooled = max((of_pair.pooled for of_pair in terms.values() if of_pair), default=0.0)
    freedoms = np.where(several, pooled or np.array(runs) - 1.0, _MANY)
    rows = np.arange(max(runs) - 1)[:, None] < freedoms
    if pooled:
        scatter = np.sqrt(rng.chisquare(pooled, (_DRAWS, 1, 1)) * own / freedoms)
    else:
        scatter = rng.standard_normal((_DRAWS, *rows.shape)) * (rows * np.sqrt(own / freedoms))
    return Joint(draws, scatter, freedoms, np.stack([query, twice]), variances, paired, pooled > 0.0)


def corrected(p: float, smallest: Array) -> float:
    """Return the chance of a p as small among those of all draws; the observed one counts as a draw, so it is not 0."""
    return max(p, float((1 + np.searchsorted(smallest, p, side="right")) / (len(smallest) + 1)))


def level(smallest: Array) -> float:
    """Return the level for each p: exactly those below it are below .05 once they are corrected."""
    return min(1.0 - LEVEL, float(smallest[math.ceil((1.0 - LEVEL) * (len(smallest) + 1)) - 2]))
