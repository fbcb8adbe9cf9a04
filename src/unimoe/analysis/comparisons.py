"""Paired comparisons of systems: one test for each row, and families of tests that are corrected together.

The interval and the p of a row are one statement of the model of variance (``unimoe.analysis.statistics``). Bootstrap
and sign flips check something narrower: they hold for other queries and these very runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np

from unimoe.analysis.arms import FIRST_STAGE, ZERO_SHOT, arm_order, has_role, pairs
from unimoe.analysis.gates.findings import mean_difference, ratio_weights, without_each_dataset
from unimoe.analysis.gates.scores import Aligned, Runs, align, seeds_on
from unimoe.analysis.saved_comparison import Correction, TestFamily, adjusted, saved_comparison
from unimoe.analysis.statistics.estimates import FEWEST, MIN_DIFFERING, Estimate, Linear, estimate, over_collections
from unimoe.analysis.statistics.resampling import checks_of_pairs
from unimoe.analysis.statistics.variance import Array, Drawn, groups_of, moments
from unimoe.checks import Check
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.metrics.scoring import dataset_group
from unimoe.results import EvalResult
from unimoe.results.folder import Results, Seed

ALPHA = 0.05
ITERATIONS = 10_000

_MOST_FOR_ALL_PAIRS = 8  # systems on a dataset; all pairs of more would be a family in which little can be found
_ROUNDING = 1e-12

_Column: TypeAlias = tuple[str, tuple[Seed, ...], str]  # a system, its runs, and a metric: one column of scores


@dataclass(frozen=True)
class Question:
    """Two systems to compare on one ``task/dataset``, or on the average of several."""

    key: str  # ``task/average of N`` for an average
    system: str
    baseline: str
    metric: str | None = None  # one that both hold by query; None for the main metric
    parts: tuple[str, ...] = ()  # the ``task/dataset`` keys that an average is over; empty for one dataset

    @property
    def place(self) -> tuple[str, ...]:
        """The ``task/dataset`` keys that it is on: one, or those of an average."""
        return self.parts or (self.key,)


@dataclass(frozen=True, kw_only=True)
class Comparison(Question):
    """The answer to a question: system against baseline on the same queries.

    The checks are over queries, the runs taken as they are; averages and metrics other than the main one have none.
    """

    metric: str
    main: bool  # whether the metric was asked for as the main one of the dataset
    runs: tuple[int, int]  # number of runs of both on the dataset where there are fewest
    alone: tuple[str, ...]  # the systems with one training run, taken as it is: nothing is known of their other seeds
    left_out: tuple[str, ...]  # runs of seeds that the other lacks, where seeds pair, or an average's datasets lack
    queries: int
    means: tuple[float, float]  # of system and baseline, in the metric's unit (0 to 1)
    difference: Estimate  # system minus baseline with its 95 % interval, in the metric's unit
    p: float | None  # two-sided; below .05 exactly where the interval excludes 0. None where there is no test
    unfit: str  # why there is no test, as a clause; empty where there is one
    effect: float | None  # Cohen's d, mean over standard deviation of the differences; None where they do not vary
    wins: int  # queries where the system scores higher, averaged over seeds
    ties: int
    losses: int
    pooled: int = 0  # how many systems share one variance of a run, where that is declared; 0 where each has its own
    check_interval: tuple[float, float] | None = None  # percentile interval of the paired bootstrap
    check_p: float | None = None  # two-sided, from sign flips; never 0
    p_corrected: float | None = None  # ``p`` corrected for the tests of its family
    correction: Correction = "holm"
    family: TestFamily | None = "table"  # None where all rows are one
    tests: int = 0  # of its family
    tried: int = 1  # what ``p`` is multiplied with, since systems were chosen on these data from so many settings
    chosen: tuple[str, ...] = ()  # how the two systems were chosen, where that is said, as sentences
    simultaneous: Estimate | None = None  # the difference with the interval that holds for all of its place together
    p_simultaneous: float | None = None  # below .05 exactly where that interval excludes 0
    checks: tuple[Check, ...] = ()  # what it depends on: the order of equal scores, unjudged documents
    # Of an average: the difference without each dataset in turn, by its name.
    without: tuple[tuple[str, float], ...] = ()
    elsewhere: Estimate | None = None  # of an average over datasets enough: the mean over collections like these

    @property
    def name(self) -> str:
        """System minus baseline."""
        return f"{self.system} \N{MINUS SIGN} {self.baseline}"

    @property
    def delta(self) -> float:
        """System minus baseline, in the metric's unit."""
        return self.difference.value

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval; None where there is no test."""
        return None if self.p is None else self.difference.interval

    @property
    def p_alone(self) -> float | None:
        """The p of Student's t before any correction, times the number of settings tried (``tried``)."""
        p = replace(self.difference, by_t=True).p
        return None if self.p is None or p is None else min(1.0, self.tried * p)

    @property
    def p_elsewhere(self) -> float | None:
        """The p of ``elsewhere``, below .05 exactly where its interval excludes 0."""
        if self.elsewhere is None or self.elsewhere.p is None:
            return None
        return min(1.0, self.elsewhere.p * ALPHA / (self.elsewhere.alpha or ALPHA))

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at .05 after the correction."""
        return self.p_corrected is not None and self.p_corrected < ALPHA

    @property
    def carried_by(self) -> tuple[str, ...]:
        """The datasets of a significant average without any one of which it is not significant.

        As a gate's stability has it, the value is that of the others and the interval keeps its width, so that a
        finding changes because of the dataset left out, not because there is less data; p is corrected as before.
        """
        if not self.significant or self.p_corrected is None or self.difference.terms is None:
            return ()
        times = self.p_corrected / (self.difference.p or 1.0)

        def lost(value: float) -> bool:
            return value * self.delta <= 0.0 or times * (self.difference.moved(value).p or 0.0) >= ALPHA

        return tuple(name for name, value in self.without if lost(value))

    @property
    def superiority(self) -> float:
        """Chance that the system scores higher on a query, ties counting half (Grissom & Kim 2012)."""
        return (self.wins + self.ties / 2.0) / (self.wins + self.ties + self.losses)

    @property
    def ordered(self) -> tuple[str, str]:
        """Both systems, the one with the higher mean first."""
        return (self.system, self.baseline) if self.delta > 0.0 else (self.baseline, self.system)

    @property
    def holds_for(self) -> str:
        """What the interval holds for beyond the data: other queries, and other seeds of systems with several."""
        if self.difference is self.elsewhere:
            return "collections"
        if max(self.runs) > 1:
            return "seeds and queries" if not self.alone else "queries, seeds of one arm"
        return "queries"


def compare_arms(
    results: Results,
    questions: Iterable[Question] | None = None,
    *,
    iterations: int = ITERATIONS,
    seed: int = 0,
    correction: Correction = "holm",
    family: TestFamily | None = "table",
    first: Callable[[Sequence[Comparison]], Sequence[Comparison]] = list,
) -> tuple[Comparison, ...]:
    """Compare systems, by default as ``questions_of`` asks; p is corrected by family, of all rows where that is None.

    ``first`` corrects rows before that, for reasons other than their number.

    All comparisons on one dataset share the resamples and permutations of their checks, ``iterations`` of each, which
    depend on ``seed`` and the number of queries alone, so that another dataset changes nothing.

    Raises:
        UsageError: no iterations.
        DataError: a system lacks a metric, or a result.
    """
    if iterations < 1:
        raise UsageError(f"iterations {iterations}: at least 1 is needed, 10000 are usual")
    asked = list(questions_of(results) if questions is None else questions)
    found = dict[Question, Comparison]()
    checked: dict[str, dict[Question, tuple[_Column, _Column]]] = {}  # by key
    # Metrics other than the main one have no checks: their resampling would take as long again for each of them.
    main = {question.key for question in asked if question.metric is None}
    for question in asked:
        found[question], used = compared(results, question)
        wanted = question.metric is None or question.key not in main
        if wanted and not question.parts and results.labelled(question.key) is None:
            checked.setdefault(question.key, {})[question] = used
    for key, of_key in checked.items():
        columns = {column: place for place, column in enumerate(dict.fromkeys(chain.from_iterable(of_key.values())))}
        means = [results.scores(arm, key, seeds, metric).mean(axis=0) for arm, seeds, metric in columns]
        pairs = np.array([[columns[column] for column in pair] for pair in of_key.values()])
        checks = checks_of_pairs(np.column_stack(means), pairs, results.codes(key), iterations, seed)
        for question, (low, high), p in zip(of_key, *(part.tolist() for part in checks), strict=True):
            found[question] = replace(found[question], check_interval=(low, high), check_p=p)

    # Each metric is a family of its own, the main metrics of all datasets together, and so are averages of a metric.
    def family_of(c: Comparison) -> object:
        return family and (c.main or c.metric, bool(c.parts), family == "dataset" and c.key)

    rows = list(first([found[question] for question in asked]))
    for places in gathered((family_of(c), place) for place, c in enumerate(rows)).values():
        p_values = {place: p for place in places if (p := rows[place].p) is not None}
        of_place = dict(zip(p_values, adjusted(list(p_values.values()), correction), strict=True))
        for place in places:
            corrected, tests = of_place.get(place), len(p_values)
            rows[place] = replace(rows[place], p_corrected=corrected, correction=correction, family=family, tests=tests)
    return tuple(rows)


def questions_of(results: Results) -> tuple[Question, ...]:
    """Return the comparisons that ``compare`` saved with the results, else those that the names of the arms ask for.

    Each trained arm is compared with zero-shot and with the first stage, each joint arm with its specialist. Systems
    whose names give them no such role are compared with each other, or with the two baselines alone where there are
    many of them.
    """
    saved = saved_comparison(results.output_dir)
    if saved and saved.tests is not None:
        asked = (Question(*test) for test in saved.tests)
        return tuple(q for q in asked if all(results.measured(q.key, arm) for arm in (q.system, q.baseline)))
    by_pair: dict[tuple[str, frozenset[str]], Question] = {}
    for key in results.dataset_keys:
        arms = list(dict.fromkeys(r.config_name for r in results.measured(key)))
        for system, baseline in _by_name(key.partition("/")[0], arms):
            by_pair.setdefault((key, frozenset((system, baseline))), Question(key, system, baseline))
    return tuple(by_pair.values())


def with_other_metrics(results: Results, asked: Sequence[Question]) -> tuple[Question, ...]:
    """Return questions on main metrics, their averages, and both on each other metric.

    Another metric is asked about where all compared results hold it by query, and their candidates reach its cutoff.
    """
    arms = gathered((question.key, arm) for question in asked for arm in (question.system, question.baseline))
    keys_of = dict[str, set[str]]()  # by metric
    for key, of_key in arms.items():
        held = [result for arm in dict.fromkeys(of_key) for result in results.measured(key, arm)]
        for metric in shared_metrics(held)[1:]:
            if any(reaches_cutoff(result, metric) for result in held):
                keys_of.setdefault(metric, set()).add(key)
    questions = [*asked, *_averages(results, asked)]
    for metric, keys in keys_of.items():
        rows = [replace(question, metric=metric) for question in asked if question.key in keys]
        questions += [*rows, *_averages(results, rows)]
    return tuple(questions)


def blocks_of(results: Results) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the ``task/dataset`` keys by task and main metric: those of one average, which never mixes metrics."""
    blocks = gathered(((first.task, first.main_metric), first.key) for first in results.firsts)
    return {block: tuple(keys) for block, keys in blocks.items()}


def systems_of(results: Iterable[EvalResult]) -> list[str]:
    """Return the systems of some results, baselines first."""
    return sorted({result.config_name for result in results}, key=arm_order)


def average_name(keys: Iterable[str]) -> str:
    """Return what the average over some datasets is called; CQADupStack's forums count once."""
    return f"average of {len({dataset_group(key.partition('/')[2]) for key in keys})}"


def reaches_cutoff(result: EvalResult, metric: str) -> bool:
    """Return whether there are as many candidates as a metric looks at; MTEB's metrics have names of any kind."""
    cutoff = re.search(r"@(\d+)$", metric)
    return result.identity.depth is None or cutoff is None or int(cutoff[1]) <= result.identity.depth


def difference(system: Array, baseline: Array, *, paired: bool = False) -> tuple[Estimate, str]:
    """Estimate system minus baseline on one dataset, and say why there is no test, or nothing where there is one.

    Both are scores ``(seeds, queries)`` of the same queries; their seeds may differ in number unless row i of one
    belongs to row i of the other (``paired``).
    """
    first, second = (Runs(tuple(range(len(scores))), scores) for scores in (system, baseline))
    whole = Aligned(("system", "baseline"), paired and len(system) == len(baseline), {"": (first, second)})
    return _difference(whole, system.shape[1])


def estimate_of_mean(scores: Array, drawn: Sequence[Drawn] = ()) -> Estimate:
    """Return a mean with its 95 % interval for other queries and, of several seeds, other seeds; none for one query."""
    found = moments([[scores]], groups_of((len(scores),), paired=False), drawn=drawn)
    return estimate(found, Linear(np.ones((1, 1))))


def unknown_arm(arm: object, known: Iterable[str]) -> str:
    """Return the message about an arm that has no results; names the closest."""
    known = list(known)
    return f"unknown arm {arm!r}{did_you_mean(str(arm), known)}; there is {', '.join(known) or 'none'}"


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


def shared_metrics(held: Sequence[EvalResult]) -> list[str]:
    """Return the main metric, then the others that all results hold by query."""
    return [held[0].main_metric, *(m for m in held[0].per_query_metrics if all(m in r.per_query_metrics for r in held))]


def _averages(results: Results, asked: Sequence[Question]) -> Iterator[Question]:
    """Yield the averages that questions on single datasets add up to; two systems need all datasets of one."""
    places = gathered(((question.system, question.baseline, question.metric), question.key) for question in asked)
    for (task, _), keys in blocks_of(results).items():
        for arms_and_metric, there in places.items():
            if len(keys) > 1 and set(keys) <= set(there):
                yield Question(f"{task}/{average_name(keys)}", *arms_and_metric, parts=keys)


def _difference(scores: Aligned, queries: int) -> tuple[Estimate, str]:
    """Return what ``difference`` does, averaged over datasets; of clusters there are fewer than queries."""
    estimated = scores.estimate(mean_difference(list(scores.by_dataset)))
    differ, drawn = scores.differing, sum(scores.moments.queries)
    what = "queries" if drawn == queries else "clusters or topics of queries"
    few = f"the systems {differ} of {drawn:,} {what}, and a test needs {MIN_DIFFERING}"
    return estimated, estimated.unfit if differ.enough else few


def compared(results: Results, question: Question) -> tuple[Comparison, tuple[_Column, _Column]]:
    """Compare two systems before any correction, and return the runs of each that are compared on the first key."""
    keys, arms = question.place, (question.system, question.baseline)
    metric = question.metric or results.measured(keys[0])[0].main_metric
    scores = align(results, arms, keys, metric)
    if results.pools_runs:
        scores = replace(scores, pool=tuple(_other_runs(results, arms, keys, metric)))
    used = list(zip(keys, scores.by_dataset.values(), strict=True))
    blocks = [
        [results.scores(arm, key, runs.seeds, metric) for arm, runs in zip(arms, of_key, strict=True)]
        for key, of_key in used
    ]
    delta = np.concatenate([system.mean(axis=0) - baseline.mean(axis=0) for system, baseline in blocks])
    delta[np.abs(delta) < _ROUNDING] = 0.0  # a tie, except for the rounding of an average
    asked = sum(len(results.queries(key)) for key in keys)
    estimated, unfit = _difference(scores, asked)
    for place in scores.apart:
        if len(scores.seeds[place]) < sum(len(of_key[place].seeds) for _, of_key in used):
            unfit = unfit or f"no run of {arms[place]} is on every dataset, and some are on several"
    datasets = list(scores.by_dataset)
    each, weights = ratio_weights(datasets, "mean_of_tirs"), ratio_weights(datasets, "tir_of_means")[0]
    mean, other = (weights @ scores.means).tolist()
    spread = float(delta.std(ddof=1)) if len(delta) > 1 and not question.parts else 0.0
    left_out = (
        f"{arm} seed {seed}"
        for place, arm in enumerate(arms)
        for key, of_key in used
        for seed in results.seeds(arm, key)
        if seed not in of_key[place].seeds
    )
    found = Comparison(
        **vars(question) | {"metric": metric},
        main=question.metric is None,
        runs=scores.fewest,
        alone=scores.single,
        left_out=tuple(dict.fromkeys(left_out)),
        queries=asked,
        means=(mean, other),
        difference=estimated,
        p=None if unfit else estimated.p,
        unfit=unfit,
        effect=float(delta.mean()) / spread if spread > _ROUNDING else None,
        wins=int((delta > 0).sum()),
        ties=int((delta == 0).sum()),
        losses=int((delta < 0).sum()),
        pooled=scores.pooled,
        without=tuple((n, mean_difference([*r.by_dataset]).value(r.means)) for n, r in without_each_dataset(scores)),
        elsewhere=None if len(each) < FEWEST or unfit else over_collections(scores.moments, each, estimated.estimand),
    )
    first, second = ((arm, runs.seeds, metric) for arm, runs in zip(arms, used[0][1], strict=True))
    return found, (first, second)


def _other_runs(results: Results, arms: Collection[str], keys: Sequence[str], metric: str) -> Iterator[Array]:
    """Yield the mean scores ``(runs, datasets)`` of each other system with several runs that are on all datasets."""
    for arm in systems_of(results.results):
        held = [results.measured(key, arm) for key in keys]
        if arm in arms or not all(of_key and metric in shared_metrics(of_key) for of_key in held):
            continue
        seeds, *others = seeds_on(results, arm, keys)
        if len(seeds) > 1 and all(other == seeds for other in others):
            yield np.stack([results.draws(arm, key, seeds, metric).mean(axis=1) for key in keys], axis=1)
