"""TIR across datasets: one number for a suite, and its interval.

Two numbers go by that name and may differ widely. The mean of TIRs gives every dataset the same say. The TIR of mean
scores gives more of it to datasets with high scores. Verdicts use the first unless a gate registered the second; both
are shown. Which datasets belong to a suite is a decision, not a sample, so that intervals speak of other seeds and
other queries, not of other datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from unimoe.analysis.crossed import LEVEL, Array, crossed_mean, seeds_mean
from unimoe.analysis.interference import (
    ESTIMANDS,
    Interference,
    InterferenceMetrics,
    NotComputable,
    TirEstimate,
    compute_interference_metrics,
)
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.metrics import dataset_group

Averaging = Literal["mean_of_tirs", "tir_of_means"]

ArmScores: TypeAlias = tuple[Array, Array]
"""Both arms on one dataset, each ``(seeds, queries)``, the specialist first."""


@dataclass(frozen=True)
class Across:
    """TIR of one pair of arms over all datasets that share a main metric.

    Attributes:
        datasets: those with a TIR; CQADupStack's subforums each, though they count once.
        queries: of all datasets together.
        seeds: the seeds both arms have on every dataset.
        mean_of_tirs: every dataset has the same say; the default of verdicts.
        tir_of_means: the TIR of the arms' mean scores.
        left_out: seeds and datasets that are part of no number here, each with the reason.
        warnings: why the number may measure something else than interference.
        caveats: why the results are unfit for decisions.
    """

    pair: Pair
    metric: str
    datasets: tuple[str, ...]
    queries: int
    seeds: tuple[int, ...]
    mean_of_tirs: TirEstimate
    tir_of_means: TirEstimate
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]


def compute_across(results: Results, metrics: InterferenceMetrics | None = None) -> tuple[Across, ...]:
    """TIR across datasets, for every pair of arms with two datasets or more of one main metric.

    MRR@10 and nDCG@10 are never mixed. A dataset that has no TIR of its own is left out, and so is a seed that some
    dataset lacks. Where no seed is common to all datasets, there is no number across them.

    Args:
        results: what ``load_all_results`` returned.
        metrics: what ``compute_interference_metrics`` returned on them; computed where left out.
    """
    metrics = metrics or compute_interference_metrics(results)
    suites = dict.fromkeys((item.pair, item.metric) for item in metrics.measured)
    found = (
        _measure(
            results,
            [item for item in metrics.measured if (item.pair, item.metric) == (pair, metric)],
            [item for item in metrics.missing if item.pair == pair],
        )
        for pair, metric in suites
    )
    return tuple(across for across in found if across is not None)


def ratio_weights(datasets: Sequence[str], averaging: Averaging) -> Array:
    """How much each dataset counts in each of the ratios whose mean is TIR across datasets.

    Datasets count the same, and CQADupStack's subforums together as one, by their mean score.

    Returns:
        ``(ratios, datasets)``; each row adds up to 1. One ratio per dataset or group for the mean of TIRs, one ratio
        for the TIR of means.
    """
    groups = [dataset_group(dataset) for dataset in datasets]
    members = np.array([[group == own for own in groups] for group in dict.fromkeys(groups)], dtype=np.float64)
    weights = members / members.sum(axis=1, keepdims=True)
    return weights if averaging == "mean_of_tirs" else np.asarray(weights.mean(axis=0, keepdims=True))


def tir_across(scores: Sequence[ArmScores], weights: Array) -> float:
    """Mean of ratios over all seeds given; ``weights`` as ``ratio_weights`` returns them."""
    base, joint = _arm_means(scores, weights)
    return float((1.0 - joint / base).mean())


def tir_across_by_seed(scores: Sequence[ArmScores], weights: Array) -> Array:
    """``tir_across`` of each seed alone, ``(seeds,)``."""
    return np.array([tir_across([(s[[i]], j[[i]]) for s, j in scores], weights) for i in range(len(scores[0][0]))])


def linearised_across(scores: Sequence[ArmScores], weights: Array) -> Array:
    """Numbers by seed and query whose mean is ``tir_across`` and, to first order, varies as it does.

    Every dataset is linearised around the ratio it is part of (delta method), as in ``linearised_tir``.

    Returns:
        ``(seeds, queries of all datasets)``.
    """
    base, joint = _arm_means(scores, weights)
    part_of, of_datasets = weights.argmax(axis=0), weights.mean(axis=0)
    ratio = joint / base
    errors = [s * (ratio[g] / base[g]) - j / base[g] for g, (s, j) in zip(part_of, scores, strict=True)]
    return side_by_side(errors, of_datasets) + float(of_datasets @ (1.0 - ratio)[part_of])


def side_by_side(blocks: Sequence[Array], weights: Array) -> Array:
    """One matrix whose mean is the weighted mean of the blocks' means, and varies with seeds and queries as it does.

    A seed's row joins its rows of all blocks, since one training run serves all datasets; queries are as independent
    between datasets as within one. What differs between the datasets' means is no variance: they are not a sample.

    Args:
        blocks: ``(seeds, queries)`` of each dataset.
        weights: ``(datasets,)``, adding up to 1.
    """
    total = sum(block.shape[1] for block in blocks)
    means = np.array([block.mean() for block in blocks])
    joined = np.empty((len(blocks[0]), total))
    start = 0
    for weight, block, mean in zip(weights, blocks, means, strict=True):
        part = joined[:, start : start + block.shape[1]]
        np.subtract(block, mean, out=part)
        part *= weight * total / block.shape[1]
        start += block.shape[1]
    joined += float(weights @ means)
    return joined


def across_table(across: Sequence[Across]) -> Table:
    """Both numbers across datasets with both intervals and labels, for every pair of arms and main metric."""
    return Table(
        name="across",
        title="Task interference across datasets",
        caption="Task interference across datasets: two ways of averaging, two intervals of 95 %",
        columns=(
            "TIR (%)",
            "Mean",
            "Low",
            "High",
            "Low, these queries",
            "High, these queries",
            "Rule",
            "With confidence",
        ),
        groups=tuple(RowGroup(_heading(item), tuple(_rows(item))) for item in across),
        notes=tuple(dict.fromkeys(_notes(across))),
    )


def _arm_means(scores: Sequence[ArmScores], weights: Array) -> tuple[Array, Array]:
    """Numerator and denominator of every ratio: the weighted mean scores of both arms, ``(ratios,)`` each."""
    specialist, joint = (weights @ [arms[side].mean() for arms in scores] for side in (0, 1))
    return specialist, joint


def _measure(results: Results, items: list[Interference], missing: list[NotComputable]) -> Across | None:
    """The number across the datasets of ``items``, which share their pair and metric."""
    seeds = tuple(sorted(set.intersection(*(set(item.seeds) for item in items))))
    if len(items) < 2 or not seeds:
        return None
    pair, metric = items[0].pair, items[0].metric
    keys = [f"{pair.task}/{item.dataset}" for item in items]
    scores = [(results.scores(pair.specialist, key, seeds), results.scores(pair.joint, key, seeds)) for key in keys]
    datasets = tuple(item.dataset for item in items)
    judged = [r for key in keys for arm in (pair.specialist, pair.joint) for r in results.measured(key, arm)]
    return Across(
        pair=pair,
        metric=metric,
        datasets=datasets,
        queries=sum(item.queries for item in items),
        seeds=seeds,
        mean_of_tirs=_estimate(scores, ratio_weights(datasets, "mean_of_tirs")),
        tir_of_means=_estimate(scores, ratio_weights(datasets, "tir_of_means")),
        left_out=(*_seeds_left_out(items, seeds), *_datasets_left_out(results, metric, missing)),
        warnings=tuple(dict.fromkeys(f"{item.dataset}: {w}" for item in items for w in item.warnings)),
        caveats=tuple(dict.fromkeys(caveat for r in judged for caveat in r.caveats)),
    )


def _estimate(scores: Sequence[ArmScores], weights: Array) -> TirEstimate:
    by_seed = tir_across_by_seed(scores, weights)
    # A dataset of one query would pass for one that has no variance between queries.
    enough = min(specialist.shape[1] for specialist, _ in scores) > 1
    return TirEstimate(
        per_seed=tuple(by_seed.tolist()),
        crossed=crossed_mean(linearised_across(scores, weights)) if enough else None,
        fixed_queries=seeds_mean(by_seed),
    )


def _seeds_left_out(items: Sequence[Interference], seeds: tuple[int, ...]) -> Iterator[str]:
    """``seed 2: not in both arms on scifact``."""
    for seed in sorted({seed for item in items for seed in item.seeds}.difference(seeds)):
        lacking = [item.dataset for item in items if seed not in item.seeds]
        yield f"seed {seed}: not in both arms on {', '.join(lacking)}"


def _datasets_left_out(results: Results, metric: str, missing: Sequence[NotComputable]) -> Iterator[str]:
    for item in missing:
        measured = results.measured(f"{item.pair.task}/{item.dataset}")
        if measured and measured[0].main_metric == metric:
            yield f"{item.dataset}: {item.reason}"


def _heading(item: Across) -> str:
    seeds = f"{'seeds' if len(item.seeds) > 1 else 'seed'} {', '.join(map(str, item.seeds))}"
    return (
        f"{item.pair.task}: {item.pair.joint} against {item.pair.specialist} "
        f"({item.metric}, {len(item.datasets)} datasets, {item.queries:,} queries, {seeds})"
    )


def _rows(item: Across) -> Iterator[tuple[Cell, ...]]:
    for name, found in (("mean of TIRs (default)", item.mean_of_tirs), ("TIR of mean scores", item.tir_of_means)):
        ends = [end for i in found.intervals.values() for end in ((None, None) if i is None else (i.low, i.high))]
        mean = _percent(found.mean)
        if found.std is not None:
            mean = replace(mean, spread=f"{100 * found.std:.2f}", spread_value=100 * found.std)
        yield (Cell(name), mean, *map(_percent, ends), Cell(found.rule), Cell(found.label or ABSENT))


def _percent(tir: float | None) -> Cell:
    return Cell(ABSENT) if tir is None else Cell(f"{100 * tir:+.2f}", value=100 * tir)


def _notes(across: Sequence[Across]) -> Iterator[str]:
    yield (
        "Mean of TIRs: every dataset has the same say. TIR of mean scores: datasets with high scores have more. "
        f"Low and high: {100 * LEVEL:g} % interval for {ESTIMANDS['seeds_and_queries']}, on which the label with "
        f"confidence rests; these queries: for {ESTIMANDS['seeds']}. No interval speaks of other datasets."
    )
    for item in across:
        if len(set(map(dataset_group, item.datasets))) < len(item.datasets):
            yield "The subforums of CQADupStack count together as one dataset, by their mean score."
        yield from (f"{_heading(item)}: left out {reason}" for reason in item.left_out)
        yield from (f"{_heading(item)}: {warning}" for warning in item.warnings)
        yield from (f"Caveat: {caveat}" for caveat in item.caveats)
