"""Paired comparisons of arms: one test for each row, one family for all rows that are shown together.

The interval and the p of a row are one statement of the model of variance (``unimoe.analysis.statistics``). Bootstrap
and sign flips are a narrower check beside it: they hold for other queries and these very runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unimoe.analysis.arms import FIRST_STAGE, ZERO_SHOT, has_role, pairs
from unimoe.analysis.kept import tests_kept
from unimoe.analysis.statistics.estimates import MIN_DIFFERING, Estimate, Linear, estimate, holm
from unimoe.analysis.statistics.resampling import bootstrap_means, sign_flip_p
from unimoe.analysis.statistics.variance import Array, Estimand, groups_of, moments
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.results import EvalResult
from unimoe.results.folder import Results, Seed

ALPHA = 0.05
ITERATIONS = 10_000

_MOST_FOR_ALL_PAIRS = 8  # systems on a dataset; all pairs of more would be a family in which little can be found
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Question:
    """Two arms to compare on one ``task/dataset``, by its main metric or another that both hold by query."""

    key: str
    system: str
    baseline: str
    metric: str | None = None


@dataclass(frozen=True)
class Comparison:
    """System against baseline on the same queries of one ``task/dataset``.

    The checks are over queries, the runs taken as they are.
    """

    key: str
    metric: str
    system: str
    baseline: str
    seeds: tuple[tuple[Seed, ...], tuple[Seed, ...]]  # of system and baseline; ``(None,)`` for an arm without seeds
    left_out: tuple[str, ...]  # runs whose seed the other arm lacks, where the experiment declares that seeds pair
    queries: int
    means: tuple[float, float]  # of system and baseline, in the metric's unit (0 to 1)
    difference: Estimate  # system minus baseline with its 95 % interval, in the metric's unit
    p: float | None  # two-sided; below .05 exactly where the interval excludes 0. None where there is no test
    p_holm: float | None  # ``p`` corrected by Holm (1979) for all comparisons made with it
    unfit: str  # why there is no test, as a clause; empty where there is one
    effect: float | None  # Cohen's d, mean over standard deviation of the differences; None where they do not vary
    wins: int  # queries where the system scores higher, averaged over seeds
    ties: int
    losses: int
    check_interval: tuple[float, float]  # percentile interval of the paired bootstrap
    check_p: float  # two-sided, from sign flips; never 0

    @property
    def delta(self) -> float:
        """System minus baseline, in the metric's unit."""
        return self.difference.value

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval; None where there is no test."""
        return None if self.p is None else self.difference.interval

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at .05 after Holm's correction."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def relative(self) -> float | None:
        """``delta`` as a fraction of the baseline's mean; None where that is 0."""
        return self.delta / self.means[1] if self.means[1] else None

    @property
    def superiority(self) -> float:
        """Chance that the system scores higher on a query, ties counting half (Grissom & Kim 2012)."""
        return (self.wins + self.ties / 2.0) / self.queries

    @property
    def alone(self) -> tuple[str, ...]:
        """The arms with one run, which the row takes as it is: nothing is known of their other seeds."""
        arms = zip((self.system, self.baseline), self.seeds, strict=True)
        return tuple(arm for arm, seeds in arms if len(seeds) == 1 and seeds[0] is not None)

    @property
    def holds_for(self) -> str:
        """What the interval holds for beyond the data: other queries, and other seeds of the arms with several."""
        if any(len(seeds) > 1 for seeds in self.seeds):
            return "seeds and queries" if not self.alone else "queries, seeds of one arm"
        return "queries"


def compare_arms(
    results: Results,
    questions: Iterable[Question] | None = None,
    *,
    iterations: int = ITERATIONS,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compare arms; all comparisons of one call are one family, by default what ``questions_of`` asks.

    All comparisons on one dataset share the resamples and permutations of their checks, ``iterations`` of each, which
    depend on ``seed`` and the number of queries alone, so that another dataset changes nothing.

    Raises:
        UsageError: no iterations.
        DataError: an arm lacks a metric, or a result.
    """
    if iterations < 1:
        raise UsageError(f"iterations {iterations}: at least 1 is needed, 10000 are usual")
    asked = list(questions_of(results) if questions is None else questions)
    found: dict[Question, Comparison] = {}
    for key in dict.fromkeys(question.key for question in asked):
        here = [question for question in asked if question.key == key]
        found |= zip(here, _on_one_dataset(results, here, iterations, seed), strict=True)
    return corrected([found[question] for question in asked])


def questions_of(results: Results) -> tuple[Question, ...]:
    """Return the comparisons that ``compare`` kept in the folder, else those that the names of the arms ask for.

    Each trained arm is compared with zero-shot and with the first stage, each joint arm with its specialist. Systems
    whose names give them no such role are compared with each other, or with the two baselines alone where there are
    many of them.
    """
    if (kept := tests_kept(results.output_dir)) is not None:
        return tuple(Question(key, *arms) for key, *arms in kept if all(results.measured(key, arm) for arm in arms))
    asked: dict[tuple[str, frozenset[str]], Question] = {}
    for key in results.dataset_keys:
        arms = list(dict.fromkeys(r.config_name for r in results.measured(key)))
        for system, baseline in _by_name(key.partition("/")[0], arms):
            asked.setdefault((key, frozenset((system, baseline))), Question(key, system, baseline))
    return tuple(asked.values())


def all_pairs(key: str, arms: Sequence[str]) -> tuple[Question, ...]:
    """Return every pair of some arms, each once, the later one against the earlier."""
    return tuple(Question(key, later, earlier) for i, later in enumerate(arms) for earlier in arms[:i])


def before_after(
    results: Results,
    before: str,
    after: Sequence[str],
    *,
    keys: Collection[str] | None = None,
    iterations: int = ITERATIONS,
) -> tuple[Comparison, ...]:
    """Compare arms with an earlier one wherever both were measured, or on some keys, on every metric that both hold.

    Raises:
        UsageError: an arm has no results, which names the closest, or an arm is compared with itself.
        DataError: no dataset has both arms.
    """
    for arm in (before, *after):
        if arm not in results:
            raise UsageError(unknown_arm(arm, results))
    if before in after:
        raise UsageError(f"{before} is compared with itself; name two arms")
    there = [key for key in results.dataset_keys if results.measured(key, before)]
    questions = [
        Question(key, arm, before, metric)
        for arm in after
        for key in there
        if (keys is None or key in keys) and results.measured(key, arm)
        for metric in _shared_metrics([*results.measured(key, arm), *results.measured(key, before)])
    ]
    if not questions:
        raise DataError(
            f"{results.output_dir}: no dataset with results of both {before} and {', '.join(after)}; "
            f"{before} has {', '.join(there)}"
        )
    return compare_arms(results, questions, iterations=iterations)


def corrected(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return comparisons with their p-values corrected by Holm, for all of them together."""
    adjusted = iter(holm([c.p for c in comparisons if c.p is not None]))
    return tuple(replace(c, p_holm=None if c.p is None else next(adjusted)) for c in comparisons)


def difference(system: Array, baseline: Array, *, paired: bool = False) -> tuple[Estimate, str]:
    """Estimate system minus baseline on one dataset, and say why there is no test, or nothing where there is one.

    Args:
        system: scores ``(seeds, queries)``; one row for a system that is taken as it is.
        baseline: of the other arm, the same queries in the same order; the number of seeds may differ.
        paired: whether row i of one belongs to row i of the other.
    """
    rows = len(system), len(baseline)
    found = moments([[system, baseline]], groups_of(rows, paired=paired and rows[0] == rows[1]))
    differing = int((np.abs(system.mean(axis=0) - baseline.mean(axis=0)) > _ROUNDING).sum())
    estimand: Estimand = "seeds_and_queries" if max(rows) > 1 else "queries"
    estimated = estimate(found, Linear(np.array([[1.0, -1.0]])), estimand)
    few = f"the systems differ on {differing:,} of {system.shape[1]:,} queries" if differing < MIN_DIFFERING else ""
    return estimated, few or estimated.unfit


def interval_of_mean(scores: Array) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean, for other queries and, of several seeds, other seeds; None for one query."""
    found = moments([[scores]], groups_of((len(scores),), paired=False))
    return estimate(found, Linear(np.ones((1, 1)))).interval


def unknown_arm(arm: str, known: Iterable[str]) -> str:
    """Return the message about an arm that has no results; names the closest."""
    known = list(known)
    return f"unknown arm {arm!r}{did_you_mean(arm, known)}; there is {', '.join(known) or 'none'}"


def _by_name(task: str, arms: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the arms of one dataset that their names tell to compare, system first; some twice."""
    trained = [arm for arm in arms if arm not in (ZERO_SHOT, FIRST_STAGE)]
    for baseline in (ZERO_SHOT, FIRST_STAGE):
        if baseline in arms:
            yield from ((arm, baseline) for arm in trained)
    for pair in pairs(arms):
        if pair.task == task and set(pair.arms) <= set(arms):
            yield pair.joint, pair.specialist
    if not trained and {ZERO_SHOT, FIRST_STAGE} <= set(arms):
        yield ZERO_SHOT, FIRST_STAGE
    if len(arms) <= _MOST_FOR_ALL_PAIRS:
        free = [arm for arm in trained if not has_role(arm)]
        yield from ((first, second) for first in free for second in trained if first != second)


def _shared_metrics(held: Sequence[EvalResult]) -> list[str]:
    """Return the main metric, then the others that all results hold by query."""
    return [held[0].main_metric, *(m for m in held[0].per_query_metrics if all(m in r.per_query_metrics for r in held))]


def _on_one_dataset(
    results: Results, questions: Sequence[Question], iterations: int, seed: int
) -> Iterator[Comparison]:
    key, asked = questions[0].key, [(q.system, q.baseline) for q in questions]
    metrics = [q.metric or results.measured(key)[0].main_metric for q in questions]
    held = {arm: tuple(r.seed for r in results.measured(key, arm)) for arms in asked for arm in arms}
    pairing = [results.paired_seeds((arm, other), [key], held[arm], held[other]) for arm, other in asked]
    seeds = [(common or held[arm], common or held[other]) for (arm, other), common in zip(asked, pairing, strict=True)]
    scores = [
        [results.scores(arm, key, of_arm, metric) for arm, of_arm in zip(arms, of_arms, strict=True)]
        for arms, of_arms, metric in zip(asked, seeds, metrics, strict=True)
    ]
    deltas = np.column_stack([system.mean(axis=0) - baseline.mean(axis=0) for system, baseline in scores])
    deltas[np.abs(deltas) < _ROUNDING] = 0.0  # a tie, except for the rounding of an average
    means = bootstrap_means(deltas, iterations, seed)
    ends = np.quantile(means, [ALPHA / 2.0, 1.0 - ALPHA / 2.0], axis=0).T
    flips = sign_flip_p(deltas, iterations, seed)
    rows = zip(asked, metrics, seeds, pairing, scores, deltas.T, ends, flips, strict=True)
    for (arm, other), metric, of_arms, common, (system, baseline), delta, (low, high), flip_p in rows:
        estimated, unfit = difference(system, baseline, paired=bool(common))
        spread = float(delta.std(ddof=1)) if len(delta) > 1 else 0.0
        yield Comparison(
            key=key,
            metric=metric,
            system=arm,
            baseline=other,
            seeds=of_arms,
            left_out=tuple(f"{a} seed {s}" for a in (arm, other) for s in held[a] if common and s not in common),
            queries=len(delta),
            means=(float(system.mean()), float(baseline.mean())),
            difference=estimated,
            p=None if unfit else estimated.p,
            p_holm=None,
            unfit=unfit,
            effect=float(delta.mean()) / spread if spread > _ROUNDING else None,
            wins=int((delta > 0).sum()),
            ties=int((delta == 0).sum()),
            losses=int((delta < 0).sum()),
            check_interval=(float(low), float(high)),
            check_p=float(flip_p),
        )
