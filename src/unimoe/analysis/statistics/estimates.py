"""Estimates with their intervals: a difference of means, a ratio of means, a mean of ratios, or one mean.

A two-sided interval, the confidence below a cutoff by Student's t, and p are one statement: the interval ends where
that confidence reaches 2.5 and 97.5 percent, and there p is .05. A one-sided claim, such as a gate's label, needs its
confidence by t and also where the skew of differences is taken out (``held``); its bound is the weaker of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy.special import stdtr, stdtrit

from unimoe.analysis.statistics.variance import Array, Estimand, Held, Moments, Terms

_Excess: TypeAlias = Callable[[float], tuple[float, Terms]]  # what a contrast exceeds a cutoff by, and its variance

LEVEL = 0.95  # of every interval
TWO_SEEDS = "where seeds carry most of the variance, an interval from two covers as little as 92 %; train a third"
_MOST_GROUPS = 2  # of runs, where p has a tail of its own
_EXACT = 1e-14  # a difference of two confidences that is their rounding
FEWEST = 5  # datasets: of fewer the variance between them is hardly known
MIN_DIFFERING = 6  # queries on which two arms must differ: with fewer no sign-flip test reaches .05


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float  # a ratio of means, a difference of means or a mean; NaN for a ratio to 0
    estimand: Estimand  # what the interval holds for beyond the data
    unfit: str  # why there is no interval, or none to decide on, as a clause; empty where there is one
    standard_error: float  # of the value, to first order; 0 where nothing varies
    degrees_of_freedom: float  # of Student's t at the value
    terms: Terms | None  # the parts of the variance at the value; None where they cannot be estimated
    _excess: _Excess | None = None
    alpha: float | None = None  # of a difference: the p below which the interval excludes 0, if it is one of many
    by_t: bool = False  # whether p is Student's t throughout, since its tail is corrected by draws

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end of the 95 % interval, which with ``alpha`` holds for many; None where there is none."""
        if self._excess is None:
            return None
        if self.alpha is None or self.terms is None or self.by_t:
            outside = (self.alpha or 1.0 - LEVEL) / 2.0
            ends = (self._cutoff(confidence, self.confidence_below) for confidence in (outside, 1.0 - outside))
            return next(ends), next(ends)
        from scipy.optimize import brentq

        alpha, terms, far = self.alpha, self.terms, self.standard_error
        while _two_sided_p(far, terms) > alpha:
            far *= 2.0
        reach = float(brentq(lambda end: _two_sided_p(end, terms) - alpha, 0.0, far, xtol=1e-15))
        return self.value - reach, self.value + reach

    def bound(self, confidence: float) -> float:
        """Return the cutoff below which the true value lies with some confidence, or above which with the rest to 1.

        It is the end of a one-sided interval: a lower one where the confidence is below one half.
        """
        if confidence >= 0.5:
            return self._cutoff(confidence, lambda cutoff: self.held(cutoff).below)
        return self._cutoff(confidence, lambda cutoff: 1.0 - self.held(cutoff).above)

    def _cutoff(self, confidence: float, below: Callable[[float], float]) -> float:
        """Return where a rising confidence reaches a level."""
        if self._excess is None:
            raise ValueError("without an interval there is no bound")
        value, reach = self.value, float(stdtrit(self.degrees_of_freedom, confidence)) * self.standard_error
        # The end is there already, unless the variance of a ratio's contrast depends on the cutoff, or there is skew.
        end = value + reach

        def beyond(cutoff: float) -> float:
            return below(cutoff) - confidence

        if abs(beyond(end)) < _EXACT:
            return end
        while (signs := beyond(value) * beyond(end)) > 0.0 and abs(end - value) < 1e9 * abs(reach):
            end = value + 2.0 * (end - value)
        from scipy.optimize import brentq  # takes a tenth of a second to import

        return end if signs > 0.0 else float(brentq(beyond, value, end, xtol=1e-15, disp=False))

    def confidence_below(self, cutoff: float) -> float:
        """Return the confidence by t that the true value is below a cutoff; a ValueError where there is no interval."""
        if self._excess is None:
            raise ValueError("without an interval there is no confidence")
        excess, terms = self._excess(cutoff)
        if terms.variance == 0.0:
            return float(round(excess, 12) < 0.0)
        return float(stdtr(terms.freedom, -excess / terms.error))

    def held(self, cutoff: float) -> Held:
        """Return the confidence that a one-sided claim has, below a cutoff and above: by t and with skew taken out."""
        if self._excess is None:
            raise ValueError("without an interval there is no confidence")
        excess, terms = self._excess(cutoff)
        return terms.held(excess)

    @cached_property
    def p(self) -> float | None:
        """Two-sided p of a true value of 0; below .05 exactly where the interval excludes 0. None without interval."""
        if self._excess is None:
            return None
        excess, terms = self._excess(0.0)
        p = _two_sided_p(excess, terms, by_t=self.by_t) if terms.variance > 0.0 else 0.0
        return max(p, float(np.finfo(np.float64).tiny))

    def moved(self, value: float) -> Estimate:
        """Return another value with the same standard error and degrees of freedom."""
        terms = self.terms
        return replace(self, value=value, _excess=None if terms is None else lambda cutoff: (value - cutoff, terms))

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as plain data; what cannot be had is None."""
        runs, queries = self.terms.shares if self.terms else (None, None)
        low, high = self.interval or (None, None)
        return {
            "value": self.value if math.isfinite(self.value) else None,
            "low": low,
            "high": high,
            "level": LEVEL,
            "estimand": self.estimand,
            "unfit": self.unfit or None,
            "standard_error": self.standard_error if self.terms else None,
            "degrees_of_freedom": self.degrees_of_freedom if math.isfinite(self.degrees_of_freedom) else None,
            "seed_share": runs,
            "query_share": queries,
            "skew": self.terms.skew if self.terms else None,
        }


@dataclass(frozen=True)
class Linear:
    """A sum of means weighted by ``(datasets, arms)``: one mean, or the difference of two arms over datasets."""

    weights: Array

    def value(self, means: Array) -> float:
        """Return the weighted sum."""
        return float((self.weights * means).sum())

    def gradient(self, means: Array) -> Array:
        """Return the weights."""
        return self.weights


@dataclass(frozen=True)
class LossRatios:
    """``(first - second) / first`` of the arms' mean scores, averaged over several such ratios, or summed by shares.

    Each row of the weights, ``(ratios, datasets)``, adds up to 1.
    """

    weights: Array
    shares: tuple[float, ...] = ()  # of each ratio in the sum; by default the same for all, as in their mean

    def value(self, means: Array) -> float:
        """Return the mean ratio; NaN where a denominator is not above 0."""
        first, second = (self.weights @ means).T
        return float(self._shares @ (1.0 - second / first)) if first.min() > 0.0 else math.nan

    def gradient(self, means: Array) -> Array:
        """Return the derivative: ``second / first ** 2`` and ``-1 / first`` of each ratio, spread over its datasets."""
        first, second = (self.weights @ means).T
        by_ratio = np.stack([second / first**2, -1.0 / first], axis=1) * self._shares[:, None]
        return np.asarray(np.einsum("rd,ra->da", self.weights, by_ratio))

    @property
    def _shares(self) -> Array:
        return np.array(self.shares or [1.0 / len(self.weights)] * len(self.weights))


Quantity: TypeAlias = Linear | LossRatios  # a function of the arms' means, with its derivative by each of them


def estimate(found: Moments, quantity: Quantity, estimand: Estimand = "seeds_and_queries") -> Estimate:
    """Estimate a quantity with its 95 % interval, or say in ``unfit`` why there is none.

    The interval of a single ratio is Fieller's (1954): a ratio below t means ``(1 - t) * first - second < 0``, a linear
    contrast. That of a mean of ratios is of first order (delta method).
    """
    value = quantity.value(found.means)
    unfit = _unfit(found, quantity, value, estimand)
    if not unfit:
        terms = found.terms(quantity.gradient(found.means), estimand)
        if terms.variance > 0.0:

            def first_order(cutoff: float) -> tuple[float, Terms]:
                return value - cutoff, terms

            def fieller(cutoff: float) -> tuple[float, Terms]:
                contrast = np.stack([(1.0 - cutoff) * quantity.weights[0], -quantity.weights[0]], axis=1)
                first, second = quantity.weights[0] @ found.means
                return (1.0 - cutoff) * first - second, found.terms(contrast, estimand)

            of_one_ratio = isinstance(quantity, LossRatios) and len(quantity.weights) == 1
            excess = fieller if of_one_ratio else first_order
            return Estimate(value, estimand, "", terms.error, terms.freedom, terms, excess)
        unfit = f"nothing varies over {estimand.replace('_', ' ')}, so a result cannot be distinguished from chance"
    return Estimate(value, estimand, unfit, 0.0, math.inf, None)


def over_draws(values: Sequence[Array], drawn: Sequence[Array], draws: int, *, paired: bool) -> Estimate:
    """Estimate the difference of two arms in a statistic that is no mean, from what it is in resamples of queries.

    ``values`` are those of each arm's runs, ``drawn`` the same in each resample, ``(runs, resamples)``, the same
    resamples for all runs, and ``draws`` the number of queries or clusters. Resamples have the variances over queries:
    those of percentiles too, which leaving out one query at a time gets wrong. The runs' variance comes from their
    values, as for a mean (docs/statistics.md, "Any statistic").
    """
    value = float(values[0].mean() - values[1].mean())
    whole = drawn[0].mean(axis=0) - drawn[1].mean(axis=0)
    together = [(values[0] - values[1], drawn[0] - drawn[1])] if paired else zip(values, drawn, strict=True)
    several = [(runs, of_runs) for runs, of_runs in together if len(runs) > 1]
    left = [
        (of_runs - of_runs.mean(axis=0)).var(axis=1, ddof=1).sum() / (len(r) * (len(r) - 1)) for r, of_runs in several
    ]
    unbiased = draws / max(1, draws - 1)  # resamples vary as if the queries were all that there are
    terms = Terms(
        query=np.array([unbiased * whole.var(ddof=1)]),
        run=np.array([runs.var(ddof=1) / len(runs) for runs, _ in several]),
        residual=unbiased * np.array(left).reshape(len(left), 1),
        queries=(draws,),
        runs=tuple(len(runs) for runs, _ in several),
    )
    excess = (lambda cutoff: (value - cutoff, terms)) if terms.variance > 0.0 else None
    return Estimate(value, "seeds_and_queries", "", terms.error, terms.freedom, terms, excess)


def _unfit(found: Moments, quantity: Quantity, value: float, estimand: Estimand) -> str:
    """Return why no variance can be estimated, or a denominator is not clear of 0; empty where all is well."""
    if math.isnan(value):
        return "the specialist does not score above 0"
    if estimand != "seeds" and min(found.queries) < 2:
        return "a dataset has one query, and other queries cannot be judged by it"
    if estimand == "seeds" and not found.groups:
        return "other training seeds cannot be judged by one run of each arm"
    for weights in quantity.weights if isinstance(quantity, LossRatios) else ():
        contrast = np.zeros_like(found.means)
        contrast[:, 0] = weights
        mean = float((contrast * found.means).sum())
        terms = found.terms(contrast, estimand)
        if terms.variance > 0.0 and mean <= _reach(terms.freedom) * terms.error:
            return (
                f"the specialist's mean of {mean:.4f} is only {mean / terms.error:.1f} standard errors above 0, and "
                "the interval of a ratio to it has no end"
            )
    return ""


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by Holm's (1979) step-down: the family-wise error keeps its level whatever the dependence."""
    ascending = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    stepped = np.minimum(1.0, np.arange(len(p_values), 0, -1) * np.asarray(p_values)[ascending])
    adjusted[ascending] = np.maximum.accumulate(stepped)
    return [float(p) for p in adjusted]


def _two_sided_p(value: float, terms: Terms, *, by_t: bool = False) -> float:
    """Return the p of a true value of 0: by Student's t up to the end of the interval, by a heavier tail beyond it.

    Satterthwaite's t is right at 5 percent. Far beyond, where Holm's correction over many rows looks, it is too thin:
    there p falls as one does that allows for how uncertain a variance over few runs is (docs/statistics.md, "Families
    and marks"). A row of a table has at most two groups of runs; a suite, or an average, of runs that differ by
    dataset has more, and keeps that t.
    """
    p = 2.0 * float(stdtr(terms.freedom, -abs(value) / terms.error))
    if by_t or p >= 1.0 - LEVEL or len(terms.runs) > _MOST_GROUPS or not (terms.run.any() and terms.query.any()):
        return p
    beyond, at_end = terms.generalised_p(np.array([value, _reach(terms.freedom) * terms.error]))
    return (1.0 - LEVEL) * float(beyond / at_end)


def _reach(freedom: float) -> float:  # half of an interval, in standard errors
    return float(stdtrit(freedom, (1.0 + LEVEL) / 2.0))


def over_collections(found: Moments, each: Array, estimand: Estimand) -> Estimate | None:
    """Estimate the mean difference of two arms over collections like these; None where nothing varies.

    Will it hold on other collections? Datasets are draws from those like them. Every one counts the same, and Student's
    t over their differences gives the interval: over queries alone, it covers at least 95 %, however much datasets
    differ in size (Bakirov & Szekely 2006; Ibragimov & Mueller 2010). With weights by estimated variances it does not
    (Paule & Mandel 1982 with Hartung & Knapp 2001: 80 to 95 % in simulations). Seeds are no part of that: a training
    run moves its scores on all datasets alike, which their scatter cannot show, so the covariance between datasets
    that runs cause is added.

    ``each`` are the weights of the datasets in every collection, ``(collections, datasets)``; each row adds up to 1.
    Collections that share topics are one draw, and count as many times as they are.
    """
    together = found.together[each.argmax(axis=1)]
    drawn = (together == np.unique(together)[:, None]) / len(each)  # the part of each in the mean, ``(draws, each)``
    contrasts = len(drawn) * np.einsum("gc,cda->gda", drawn, np.stack([each, -each], axis=2))
    mean = float(np.einsum("gda,da->", contrasts, found.means)) / len(drawn)
    sizes = len(drawn) * drawn.sum(axis=1)  # of a draw over the mean one: its deviations weigh as much
    values = np.einsum("gda,da->g", contrasts, found.means) + mean * (1.0 - sizes)
    groups = found.groups if estimand != "queries" else ()
    runs = [np.einsum("rda,gda->rg", group.means, contrasts) for group in groups]
    apart = ~np.eye(len(drawn), dtype=bool)
    if len(values) < FEWEST:
        return None
    terms = Terms(
        query=np.array([values.var(ddof=1) / len(values)]),
        run=np.array(
            [
                max(0.0, (of.T @ of)[apart].mean() / (group.runs * (group.runs - 1)))
                for of, group in zip(runs, groups, strict=True)
            ]
        ),
        residual=np.zeros((len(runs), 1)),
        queries=(len(values),),
        runs=tuple(group.runs for group in groups),
        pooled=found.pooled,
    )

    def excess(cutoff: float) -> tuple[float, Terms]:
        return mean - cutoff, terms

    return Estimate(mean, estimand, "", terms.error, terms.freedom, terms, excess) if terms.variance else None
