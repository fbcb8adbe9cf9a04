"""Two systems by groups of queries: their difference or TIR in each group, and whether it varies between groups.

That one group's difference is significant and another's is not does not show that the two differ (Gelman & Stern 2006).
That is a test of its own, of the contrast between groups: a run's shift that all groups share cancels in it, and what
runs do in one group alone counts. Of three groups or more every two are contrasted, corrected together (max-t).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.formats import p_text, signed
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.scores import Aligned, Runs, align, collect, drawn_together
from unimoe.analysis.statistics.estimates import Estimate, Linear, LossRatios, Quantity, holm
from unimoe.analysis.statistics.simultaneous import corrected, joint, level
from unimoe.analysis.statistics.variance import Array, Estimand
from unimoe.core.grouping import natural_key
from unimoe.results.clusters import Codes
from unimoe.results.folder import Results

_PERMUTATIONS, _CELLS = 2_000, 2_000_000  # and the most numbers of these in memory at once


@dataclass(frozen=True)
class OfGroup:
    """What two arms score on the queries of one group."""

    group: str
    queries: int
    means: tuple[float, float]  # of each arm, in the metric's unit (0 to 1)
    estimate: Estimate  # first arm minus second, or TIR; without an interval where there is no test
    p: float | None  # two-sided; None where there is no test
    unfit: str  # why there is no test, as a clause; empty where there is one
    p_corrected: float | None = None  # by Holm over the groups


@dataclass(frozen=True)
class Interaction:
    """The test of whether a difference, or TIR, varies between groups: the two groups that differ most surely."""

    groups: tuple[str, str]  # the one with the higher value first
    gap: float  # its value less that of the other
    interval: tuple[float, float]  # of the gap, at 95 %; with more groups, for every two of them together
    p: float  # corrected for every two groups: the chance of such a gap if none differ


@dataclass(frozen=True)
class ByGroup:
    """Two arms on one ``task/dataset``, by groups of its queries."""

    key: str
    metric: str
    arms: tuple[str, str]  # system and baseline, or of a TIR specialist and joint arm
    ratio: bool  # whether values are TIRs, in place of differences
    alone: tuple[str, ...]  # arms with one training run, taken as it is
    rows: tuple[OfGroup, ...]
    interaction: Interaction | None  # None where no two groups can be tested
    p_corrected: float | None = None  # of the interaction, by Holm over all pairs and datasets that were asked for

    @property
    def name(self) -> str:
        """What each group has a value of."""
        first, second = self.arms
        return f"TIR of {second} against {first}" if self.ratio else f"{first} \N{MINUS SIGN} {second}"

    @property
    def sentence(self) -> str:
        """Say whether the value varies between groups, which no two groups' own significances can tell."""
        what, found, p = ("TIR" if self.ratio else "the difference"), self.interaction, self.p_corrected
        if found is None or p is None:
            return f"whether {what} varies between groups cannot be tested: fewer than two groups have a test"
        varies = "varies between groups" if p < ALPHA else "does not vary between groups by more than chance"
        gap, *ends = (signed(100.0 * value, keep_side=True) for value in (found.gap, *found.interval))
        apart = f"{' minus '.join(found.groups)} is {gap} points{' of TIR' if self.ratio else ''} [{', '.join(ends)}]"
        return f"{what} {varies} (p {p_text(p)}); most surely apart: {apart}"


def compare_groups(results: Results, judged: Iterable[Judgment], compared: Iterable[Comparison]) -> tuple[ByGroup, ...]:
    """Compare arms by the groups of the results: those of each judgment, and of other comparisons on one dataset."""
    if results.groups is None:
        return ()
    asked = dict[tuple[frozenset[str], str, str], tuple[Aligned, bool, Estimand]]()
    for gate, look in ((item.gate, item.look) for item in judged):
        for dataset, key in zip(gate.datasets, gate.keys, strict=True):
            scores = collect(results, gate.model_copy(update={"datasets": [dataset]}), look)
            how = scores, isinstance(gate, InterferenceGate), gate.estimand
            asked[frozenset(gate.arms), key, gate.metric] = how
    for c in (c for c in compared if not c.parts):
        scores = align(results, (c.system, c.baseline), [c.key], c.metric)
        asked.setdefault((frozenset(scores.arms), c.key, c.metric), (scores, False, "seeds_and_queries"))
    found = []
    for (_, key, metric), (scores, ratio, estimand) in asked.items():
        ((dataset, used),) = scores.by_dataset.items()  # maybe of clusters, which groups need not contain whole
        first, second = (
            Runs(of.seeds, results.scores(arm, key, of.seeds, metric))
            for arm, of in zip(scores.arms, used, strict=True)
        )
        groups = [results.groups.of[query_id] for query_id in sorted(results.measured(key)[0].per_query)]
        by_query = replace(scores, by_dataset={dataset: (first, second)}, shares={}, drawn=())
        of_groups = by_group(by_query, groups, results.codes(key), ratio=ratio, estimand=estimand)
        found.append(ByGroup(key, metric, scores.arms, ratio, scores.single, *of_groups))
    p_values = iter(holm([one.interaction.p for one in found if one.interaction]))
    return tuple(replace(one, p_corrected=next(p_values)) if one.interaction else one for one in found)


def by_group(
    scores: Aligned,
    groups: Sequence[str],
    codes: Codes | None = None,
    *,
    ratio: bool = False,
    estimand: Estimand = "seeds_and_queries",
) -> tuple[tuple[OfGroup, ...], Interaction | None]:
    """Compare two arms by groups, and groups with each other; None where fewer than two of these can be tested.

    ``scores`` are those of one dataset by query, with the group of each query and its cluster, if there are any: a
    cluster may span groups, and is drawn with all of them. ``ratio`` asks for TIR, in place of the difference.
    """
    parts = {name: np.flatnonzero(np.array(groups) == name) for name in sorted(set(groups), key=natural_key)}
    rows = []
    for name, columns in parts.items():
        alone = _split(scores, {name: columns}, codes)
        found, differ = alone.estimate(_quantity(np.ones((1, 1)), ratio=ratio), estimand), alone.differing
        drawn = f"{sum(alone.moments.queries):,} {'queries' if codes is None else 'clusters'}"
        unfit = found.unfit or ("" if differ.enough else f"the systems {differ} of {drawn}, too few for a test")
        means = float(alone.means[0, 0]), float(alone.means[0, 1])
        found = replace(found, _excess=None) if unfit else found
        rows.append(OfGroup(name, len(columns), means, found, found.p, unfit))
    p_values = iter(holm([row.p for row in rows if row.p is not None]))
    rows = [row if row.p is None else replace(row, p_corrected=next(p_values)) for row in rows]
    # In descending order, so that the first of two groups has the higher value.
    tested = sorted((row for row in rows if row.p is not None), key=lambda row: -row.estimate.value)
    if len(tested) < 2:
        return tuple(rows), None
    whole = _split(scores, {row.group: parts[row.group] for row in tested}, codes)
    return tuple(rows), _interaction(whole, ratio=ratio, estimand=estimand)


def _interaction(whole: Aligned, *, ratio: bool, estimand: Estimand) -> Interaction | None:
    """Contrast every two groups, and return the surest contrast, corrected for their number."""
    names, gaps = list(whole.by_dataset), dict[tuple[int, int], Estimate]()
    for pair in combinations(range(len(names)), 2):
        gaps[pair] = whole.estimate(_quantity(np.eye(len(names))[[*pair]], ratio=ratio), estimand)
    terms = {pair: gap.terms for pair, gap in gaps.items() if gap.terms is not None}
    if len(terms) < len(gaps):  # nothing varies
        return None
    several, alpha = len(names) > 2, ALPHA
    pair, gap = min(gaps.items(), key=lambda item: _p(item[1], by_t=several))
    p = _p(gap, by_t=several)
    if several:  # groups take the place of systems with paired runs: a run scores on all; both arms' runs add freedom
        freedom = sum(int(runs) - 1 for runs in terms[pair].runs)
        of_pairs = {two: replace(of, runs=(freedom + 1,) if freedom else ()) for two, of in terms.items()}
        smallest = joint(of_pairs, [freedom + 1] * len(names)).of_all
        p, alpha = corrected(p, smallest), level(smallest)
    if not whole.drawn and estimand != "seeds" and (permuted := _permuted(whole, ratio=ratio)) > p:
        p = permuted
        if p >= ALPHA:  # so that the interval too holds a gap of 0
            alpha = min(alpha, max(_p(gap, by_t=several), 1e-12) * ALPHA / p)
    interval = gap.bound(alpha / 2.0), gap.bound(1.0 - alpha / 2.0)
    return Interaction((names[pair[0]], names[pair[1]]), gap.value, interval, p)


def _permuted(whole: Aligned, *, ratio: bool) -> float:
    """Return the p of the largest Welch statistic of two groups among those of queries that change their groups.

    Runs are taken as they are: a second condition, which holds its level where a small group has by chance none of the
    few large losses, and so hardly any variance. That of a studentised statistic is right in large groups too which
    scatter differently (Janssen 1997).
    """
    by_query = [(a.scores.mean(axis=0), b.scores.mean(axis=0)) for a, b in whole.by_dataset.values()]
    kept = sum(b.sum() for _, b in by_query) / sum(a.sum() for a, _ in by_query) if ratio else 1.0
    values = np.concatenate([(kept * a - b) / (a.mean() if ratio else 1.0) for a, b in by_query])
    sizes, rng = np.array([len(a) for a, _ in by_query]), np.random.default_rng(0)
    one, other = np.triu_indices(len(sizes), 1)
    starts, found = np.cumsum(sizes) - sizes, list[Array]()
    rows = max(1, min(_PERMUTATIONS, _CELLS // len(values)))
    for first in range(0, _PERMUTATIONS, rows):
        drawn = rng.permuted(np.tile(values, (min(rows, _PERMUTATIONS - first), 1)), axis=1)
        drawn[0] = drawn[0] if first else values  # the data count as one
        means = np.add.reduceat(drawn, starts, axis=1) / sizes
        errors = np.add.reduceat((drawn - np.repeat(means, sizes, axis=1)) ** 2, starts, axis=1)
        errors /= sizes * (sizes - 1)
        gaps = (means[:, one] - means[:, other]) ** 2 / (errors[:, one] + errors[:, other] + 1e-24)
        found.append(gaps.max(axis=1))
    return float((np.concatenate(found) >= found[0][0] * (1.0 - 1e-9)).mean())


def _split(scores: Aligned, parts: Mapping[str, NDArray[np.intp]], codes: Codes | None) -> Aligned:
    """Return scores on one dataset by groups of its queries, each in the place of a dataset."""
    ((first, second),) = scores.by_dataset.values()
    by_part = {
        name: (Runs(first.seeds, first.scores[:, columns]), Runs(second.seeds, second.scores[:, columns]))
        for name, columns in parts.items()
    }
    drawn = () if codes is None else drawn_together([codes[columns] for columns in parts.values()])
    return replace(scores, by_dataset=by_part, drawn=drawn)


def _quantity(places: Array, *, ratio: bool) -> Quantity:
    """Return the value of one group, or that of a first less that of a second, from a row of weights for each."""
    signs = (1.0, -1.0)[: len(places)]
    weights = np.array(signs) @ places
    return LossRatios(places, signs) if ratio else Linear(np.stack([weights, -weights], axis=1))


def _p(gap: Estimate, *, by_t: bool) -> float:
    """Return the two-sided p of a gap of 0: the larger one of Student's t, and of Hall's where skew is taken out."""
    return max(replace(gap, by_t=by_t).p or 0.0, 2.0 * (1.0 - max(gap.held(0.0))))
