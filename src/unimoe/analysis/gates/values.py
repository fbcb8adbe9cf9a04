"""The value of a gate and its interval, from the scores of two arms.

The value is a mean over seeds and queries: of differences, or of the linearised TIR. Datasets are taken as given, each
with the same weight, and their queries as independent; one training seed serves all of them. CQADupStack's forums make
one dataset, whose score is the mean of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unimoe.analysis.across import linearised_across, ratio_weights, side_by_side, tir_across
from unimoe.analysis.crossed import Array, CrossedInterval, Label, crossed_mean, queries_mean, seeds_mean
from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.scores import GateScores


@dataclass(frozen=True)
class Finding:
    """What some scores say of a gate.

    Attributes:
        value: mean over seeds of TIR (a ratio) or of system minus baseline (in the metric's unit); the rule judges it.
        per_seed: the value by training seed; one number where no arm has seeds.
        interval: None where the registered estimand needs more seeds or queries.
        confidence: confidence in each label; empty without an interval.
        rule: the label of the value, taken for the truth.
        label: the label that holds the confidence the gate asks for, else INCONCLUSIVE.
    """

    value: float
    per_seed: tuple[float, ...]
    interval: CrossedInterval | None
    confidence: dict[Label, float]
    rule: Label
    label: Label


def find(gate: Gate, scores: GateScores) -> Finding:
    """Judge scores by a gate, whatever seeds and datasets they hold."""
    per_seed = _by_seed(gate, scores)
    value = math.fsum(per_seed) / len(per_seed)
    interval = interval_of(gate, scores)
    confidence = gate.confidences(interval.confidence_below) if interval else {}
    return Finding(value, per_seed, interval, confidence, rule_of(gate, value), _label(confidence, gate.confidence))


def rule_of(gate: Gate, value: float) -> Label:
    """The label of a value that is taken for the truth."""
    return _label(gate.confidences(lambda cutoff: float(round(value, 12) < cutoff)), 1.0)


def value_of(gate: Gate, scores: GateScores) -> float:
    """TIR, or mean difference, over all seeds given; across datasets as the gate says."""
    arms = list(scores.by_dataset.values())
    if isinstance(gate, InterferenceGate):
        return tir_across(arms, ratio_weights(list(scores.by_dataset), gate.across))
    return float(_dataset_weights(scores) @ [first.mean() - second.mean() for first, second in arms])


def unregistered_value(gate: Gate, scores: GateScores) -> float | None:
    """TIR across datasets by the way that was not registered; None for other kinds and where there is one to count."""
    if not isinstance(gate, InterferenceGate) or len(scores.groups) == 1:
        return None
    other = "mean_of_tirs" if gate.across == "tir_of_means" else "tir_of_means"
    return value_of(gate.model_copy(update={"across": other}), scores)


def interval_of(gate: Gate, scores: GateScores) -> CrossedInterval | None:
    """95 % interval of the gate's value for its estimand.

    With other seeds and queries: the crossed interval, or Student's over queries where no arm has seeds. With other
    seeds on these queries: Student's over seeds.

    Returns:
        None where fewer than two of what varies are there, on any dataset.
    """
    if gate.estimand == "seeds":
        if not scores.trained:
            return None
        return seeds_mean(np.array(_by_seed(gate, scores)))
    if min(first.shape[1] for first, _ in scores.by_dataset.values()) < 2:
        return None
    values = _linearised(gate, scores)
    return crossed_mean(values) if scores.trained else queries_mean(values[0])


def _by_seed(gate: Gate, scores: GateScores) -> tuple[float, ...]:
    """The value of each seed alone."""
    means = scores.seed_means
    return tuple(value_of(gate, means.only_seeds([seed])) for seed in scores.seeds)


def _dataset_weights(scores: GateScores) -> Array:
    """``(datasets,)``, adding up to 1."""
    return np.asarray(ratio_weights(list(scores.by_dataset), "tir_of_means")[0])


def _linearised(gate: Gate, scores: GateScores) -> Array:
    """Numbers by seed and query whose mean is the gate's value and, to first order, varies as it does.

    A difference is linear already.

    Returns:
        ``(seeds, queries of all datasets)``.
    """
    arms = list(scores.by_dataset.values())
    if isinstance(gate, InterferenceGate):
        return linearised_across(arms, ratio_weights(list(scores.by_dataset), gate.across))
    return side_by_side([first - second for first, second in arms], _dataset_weights(scores))


def _label(confidence: dict[Label, float], needed: float) -> Label:
    return next((label for label, held in confidence.items() if held >= needed), "INCONCLUSIVE")
