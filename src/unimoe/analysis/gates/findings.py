"""Findings of a gate from scores: value, interval, the label that holds the confidence, and its stability."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unimoe.analysis.gates.definitions import Averaging, Gate, InterferenceGate, Label
from unimoe.analysis.gates.scores import Aligned
from unimoe.analysis.statistics.estimates import MIN_DIFFERING, Estimate, Linear, LossRatios, Quantity
from unimoe.analysis.statistics.variance import ESTIMANDS, Array, Held
from unimoe.core.grouping import gathered
from unimoe.metrics.scoring import dataset_group
from unimoe.results.folder import Seed

Kind = Literal["seed", "dataset"]


@dataclass(frozen=True)
class Finding:
    """What some scores say of a gate.

    ``by_seed`` describes the seeds that both arms have; equal seeds make a pair only where the experiment declares it.
    """

    datasets: tuple[str, ...]  # CQADupStack's forums each, though they count once
    seeds: tuple[tuple[Seed, ...], tuple[Seed, ...]]  # of each arm; ``(None,)`` for an arm without seeds
    paired: bool  # whether seeds pair
    queries: int  # of all datasets together
    means: tuple[float, float]  # of each arm, averaged over datasets, in the metric's unit (0 to 1)
    runs: tuple[tuple[float, ...], tuple[float, ...]]  # the same of every run on all datasets, by arm
    by_seed: dict[int, float]  # the gate's value, of the seeds that have one
    estimate: Estimate  # TIR (a ratio) or system minus baseline (in the metric's unit), with its interval
    label: Label  # the one that holds the confidence the gate asks for, else INCONCLUSIVE
    confidence: dict[Label, float]  # in each label; empty where too little is known to have any
    why: str  # why the label is INCONCLUSIVE whatever the numbers are, as a clause; empty where they decide

    @property
    def value(self) -> float:
        """TIR or difference."""
        return self.estimate.value

    @property
    def holds_for(self) -> str:
        """What the interval holds for beyond the data; of an arm with one run, no other seed is known."""
        held = ESTIMANDS[self.estimate.estimand]
        alone = any(len(seeds) == 1 and seeds[0] is not None for seeds in self.seeds)
        return held.replace("training seeds", "training seeds of one arm") if alone else held

    @property
    def std(self) -> float | None:
        """Standard deviation of the value over seeds (divisor n - 1); None with fewer than two in common."""
        return float(np.std(list(self.by_seed.values()), ddof=1)) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class LeaveOneOut:
    """What a gate says without one seed or one dataset."""

    left_out: str  # ``seed 1``, ``joint_r8 seed 1``, or a dataset; CQADupStack's forums go together
    kind: Kind
    value: float  # as in ``Finding``
    region: Label  # of the region in which the value lies, however uncertain it is
    label: Label  # of the value with the interval of the whole, moved to it


@dataclass(frozen=True)
class Stability:
    """Whether the label of a gate holds without any one seed or dataset."""

    rows: tuple[LeaveOneOut, ...]  # seeds first; a kind of which there is only one has none
    holds: bool | None  # the label is the same in all rows; None where nothing can be left out, or nothing was decided
    sentence: str  # the same in words


def evaluate_gate(gate: Gate, scores: Aligned) -> Finding:
    """Judge scores by a gate, whatever seeds and datasets they hold."""
    datasets = tuple(scores.by_dataset)
    quantity = quantity_of(gate, datasets)
    found, queries, differ = scores.estimate(quantity, gate.estimand), sum(scores.moments.queries), scores.differing
    why = found.unfit
    if not math.isnan(found.value) and not differ.enough:
        why = f"the arms {differ} of {queries:,} queries, and fewer than {MIN_DIFFERING} cannot decide"
    elif not math.isnan(found.value) and gate.estimand != "queries" and scores.single:
        of = " and ".join(scores.single)
        why = f"one seed of {of}: other training seeds cannot be judged by it, train two more"
        why += "" if scores.numbered else ", or name what is not trained as untrained"
    confidence = {} if why else gate.confidences(found.held)
    weights = ratio_weights(datasets, "tir_of_means")[0]
    first, second = weights @ scores.means
    runs, others = scores.run_means(0), scores.run_means(1)
    by_seed = {
        seed: quantity.value(np.stack([runs[seed], others[seed]], axis=1))
        for seed in (runs if scores.numbered or scores.paired else ())
        if seed is not None and seed in others
    }
    return Finding(
        datasets=datasets,
        seeds=scores.seeds,
        paired=scores.paired,
        queries=queries,
        means=(float(first), float(second)),
        runs=(tuple(float(run @ weights) for run in runs.values()), tuple(float(r @ weights) for r in others.values())),
        by_seed={seed: value for seed, value in by_seed.items() if math.isfinite(value)},
        estimate=found,
        label=label_of(confidence, gate.label_confidence),
        confidence=confidence,
        why=why,
    )


def stability_of(gate: Gate, scores: Aligned, whole: Finding) -> Stability:
    """Judge a gate without each of its seeds and datasets, by the interval of the whole around the value of the rest.

    So a label changes because the value moved, not because data was taken away.
    """
    arms = [(None, "")] if scores.paired else [(place, f"{arm} ") for place, arm in enumerate(scores.arms)]
    left: list[tuple[str, Kind, Aligned]] = [
        (f"{arm}seed {seed}", "seed", scores.without(seed, place))
        for place, arm in arms
        for seed in scores.seeds[place or 0]
        if scores.fewest[place or 0] > 1
    ]
    untried = []
    if max(scores.fewest) == 1:
        trained = any(seed is not None for seeds in scores.seeds for seed in seeds)
        untried.append(f"no seed can be left out, there {'is one' if trained else 'are none'}")
    if len(scores.groups) == 1:
        untried.append("no dataset can be left out, there is one")
    left += [(name, "dataset", rest) for name, rest in without_each_dataset(scores)]
    rows = []
    for name, kind, others in left:
        value = quantity_of(gate, tuple(others.by_dataset)).value(others.means)

        def at(cutoff: float, moved: float = value - whole.value) -> Held:
            return whole.estimate.held(cutoff - moved)

        label = label_of({} if whole.why else gate.confidences(at), gate.label_confidence)
        rows.append(LeaveOneOut(name, kind, value, region_of(gate, value), label))
    if not rows:
        return Stability((), None, f"not tried: {'; '.join(untried)}")
    if whole.why:
        return Stability(tuple(rows), None, "not tried: there is no label to keep")
    changes = gathered((row.label, row.left_out) for row in rows if row.label != whole.label)
    if changes:
        without = (f"{label} without {' or '.join(names)}" for label, names in changes.items())
        said = f"{whole.label} becomes {', '.join(without)}"
    else:
        said = f"{whole.label} holds whichever {' or '.join(dict.fromkeys(row.kind for row in rows))} is left out"
    return Stability(tuple(rows), not changes, "; ".join([said, *untried]))


def without_each_dataset(scores: Aligned) -> Iterator[tuple[str, Aligned]]:
    """Yield scores without each dataset in turn, by its name; CQADupStack's forums go together, and one alone stays."""
    for name, parts in scores.groups.items() if len(scores.groups) > 1 else ():
        rest = {dataset: runs for dataset, runs in scores.by_dataset.items() if dataset not in parts}
        yield name, replace(scores, by_dataset=rest)


def region_of(gate: Gate, value: float) -> Label:
    """Return the label of the region a value lies in; INCONCLUSIVE for NaN."""
    if math.isnan(value):
        return "INCONCLUSIVE"

    def at(cutoff: float) -> Held:
        below = float(round(value, 12) < cutoff)
        return Held(below, 1.0 - below)

    return label_of(gate.confidences(at), 1.0)


def label_of(confidence: dict[Label, float], needed: float) -> Label:
    """Return the label that holds the confidence needed, else INCONCLUSIVE."""
    return next((label for label, held in confidence.items() if held >= needed), "INCONCLUSIVE")


def bounds_of(gate: Gate, found: Finding) -> tuple[float | None, float | None]:
    """Return the bounds that decide: the ends of the one-sided intervals that have the gate's confidence.

    PASS rests on the lower one, FAIL on the upper one; MARGINAL, and PASS of an equivalence gate, on both.
    """
    bound, needed, first, last = found.estimate.bound, gate.label_confidence, gate.cutoffs[0], gate.cutoffs[-1]
    equivalence = gate.kind == "equivalence"
    if found.label == "INCONCLUSIVE":
        return None, None
    if found.label == "MARGINAL":
        return first, last
    if found.label == "PASS" and equivalence:
        return max(bound(1.0 - needed), first), min(bound(needed), last)
    if found.label == "PASS":
        return max(bound(1.0 - needed), last), None
    if equivalence:
        half = (1.0 - needed) / 2.0  # its FAIL is two-sided
        return (bound(half), None) if found.value > 0.0 else (None, bound(1.0 - half))
    return None, min(bound(needed), first)


def quantity_of(gate: Gate, datasets: Sequence[str]) -> Quantity:
    """Return what a gate estimates: TIR, or system minus baseline averaged over datasets."""
    if isinstance(gate, InterferenceGate):
        return LossRatios(ratio_weights(datasets, gate.across))
    return mean_difference(datasets)


def mean_difference(datasets: Sequence[str]) -> Linear:
    """Return the first arm's mean score minus the second's, averaged over datasets."""
    weights = ratio_weights(datasets, "tir_of_means")[0]
    return Linear(np.stack([weights, -weights], axis=1))


def ratio_weights(datasets: Sequence[str], averaging: Averaging) -> Array:
    """Return how much each dataset counts in each of the ratios that TIR averages across datasets.

    Datasets count the same, and CQADupStack's subforums together as one, by their mean score.

    Returns:
        ``(ratios, datasets)``; each row adds up to 1. One ratio per dataset or group for the mean of TIRs, one ratio
        for the TIR of means.
    """
    groups = [dataset_group(dataset) for dataset in datasets]
    members = np.array([[group == own for own in groups] for group in dict.fromkeys(groups)], dtype=np.float64)
    weights = members / members.sum(axis=1, keepdims=True)
    return weights if averaging == "mean_of_tirs" else np.asarray(weights.mean(axis=0, keepdims=True))
