"""Two arms on the same queries, metric by metric: what a training, or another encoder, has changed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from unimoe.analysis.loading import Results, Seed, load_all_results
from unimoe.analysis.resampling import Array, bootstrap_t, sign_flip_p, standard_deviations
from unimoe.analysis.significance import ITERATIONS
from unimoe.analysis.summaries.arms import caveat_notes, mean_cell, signed_cell
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.console import stderr, stdout
from unimoe.errors import DataError, UsageError, did_you_mean
from unimoe.io import find_files

_ROUNDING = 1e-12


@dataclass(frozen=True)
class ArmDelta:
    """One metric of one ``task/dataset``, before and after.

    Attributes:
        key: ``task/dataset``.
        before: the arm that is compared with.
        after: the arm in question.
        metric: of whose per-query values, averaged over seeds where an arm has several, the difference is taken.
        queries: how many.
        before_mean: mean over queries.
        after_mean: likewise.
        delta: after minus before, in the metric's unit.
        low: lower end of the paired bootstrap-t interval over queries (Efron 1982); infinite where the queries are too
            few to bound it, ``delta`` where the differences do not vary.
        high: its upper end.
        level: of the interval, for this metric and dataset alone.
        p: two-sided, from the sign-flip permutation of per-query differences; never 0, not corrected.
        wins: queries on which the later arm scores higher; ``ties`` and ``losses`` likewise.
    """

    key: str
    before: str
    after: str
    metric: str
    queries: int
    before_mean: float
    after_mean: float
    delta: float
    low: float
    high: float
    level: float
    p: float
    wins: int
    ties: int
    losses: int


def compare_arms(
    results: Results,
    before: str,
    after: str,
    metrics: Sequence[str] | None = None,
    *,
    keys: Collection[str] | None = None,
    level: float = 0.95,
    iterations: int = ITERATIONS,
    seed: int = 0,
) -> tuple[ArmDelta, ...]:
    """Compare two arms wherever both were measured.

    All metrics of a dataset share their resamples, which depend on ``seed`` and the number of queries alone.

    Args:
        results: what ``load_all_results`` returned.
        before: the arm that is compared with.
        after: the arm in question.
        metrics: those wanted, each of which both arms must hold by query; by default all that both hold, the main
            metric first.
        keys: the ``task/dataset`` wanted; by default all.
        level: of the intervals.
        iterations: resamples, and permutations.
        seed: of the random numbers.

    Returns:
        By dataset in the order of the results, then by metric.

    Raises:
        UsageError: an arm has no results, which names the closest, both are one, or ``level`` is not between 0 and 1.
        DataError: no dataset has both arms, or an arm lacks a metric.
    """
    if not 0.0 < level < 1.0:
        raise UsageError(f"level {level}: choose a value between 0 and 1, for example 0.95")
    for arm in (before, after):
        if arm not in results:
            raise UsageError(_unknown(arm, results))
    if before == after:
        raise UsageError(f"{before} is compared with itself; name two arms")
    asked = [key for key in results.dataset_keys if keys is None or key in keys]
    shared = [key for key in asked if all(results.measured(key, arm) for arm in (before, after))]
    if not shared:
        raise DataError(
            f"{results.output_dir}: no dataset with results of both {before} and {after}; "
            f"{before} has {', '.join(k for k in results.dataset_keys if results.measured(k, before))}"
        )
    found: list[ArmDelta] = []
    for key in shared:
        chosen = list(metrics) if metrics is not None else _common_metrics(results, key, before, after)
        first, second = (_by_query(results, arm, key, chosen) for arm in (before, after))
        found += _deltas(key, before, after, chosen, first, second, level, iterations, seed)
    return tuple(found)


def before_after_table(results: Results, deltas: Sequence[ArmDelta]) -> Table:
    """Before, after and difference in points (score x 100), a block for each dataset and pair of arms."""
    groups = [
        RowGroup(f"{key}: {before} → {after} ({queries:,} queries)", tuple(_row(delta) for delta in rows))
        for (key, before, after, queries), rows in groupby(deltas, attrgetter("key", "before", "after", "queries"))
    ]
    level = 100.0 * (deltas[0].level if deltas else 0.95)
    return Table(
        name="before_after",
        title="Before and after",
        caption=f"Scores before and after × 100, and their difference with {level:g} % paired intervals over queries",
        columns=("Metric", "Before", "After", "Delta", "Low", "High", "p", "W/T/L"),
        groups=tuple(groups),
        notes=(
            "Low, high: bootstrap-t over paired differences. p: two-sided sign-flip permutation. Both are of one row "
            "alone, without a correction for the number of rows. W/T/L: queries won, tied, lost by the later arm.",
            *caveat_notes(results),
        ),
    )


def refuse_unknown_arm(output_dir: Path, arm: str, coming: Iterable[str]) -> None:
    """Refuse, before any work is done, an arm that has no result in a folder and is none of those to come.

    Raises:
        UsageError: there is none; names the closest.
    """
    coming = list(coming)
    there = find_files(output_dir, "*/seed_*/results/*/*.json") if output_dir.exists() else []
    known = sorted({*coming, *(path.parents[3].name for path in there)})
    if arm not in known:
        raise UsageError(_unknown(arm, known))


def print_before_after(output_dir: Path, before: str, after: Sequence[str], keys: Sequence[str]) -> None:
    """Print, as one table, how some arms differ from an earlier one on some ``task/dataset`` keys of a folder.

    Nothing is printed without keys; a key on which the earlier arm was not measured is named on stderr.
    """
    after = [arm for arm in after if arm != before]
    if not keys or not after:
        return
    results = load_all_results(output_dir, only={(arm, key) for arm in (before, *after) for key in keys})
    for key in keys:
        if not results.measured(key, before):
            stderr.print(f"{key}: no result of {before} to compare with", style="yellow", soft_wrap=True)
    compared = [key for key in keys if results.measured(key, before)]
    if compared:
        deltas = [delta for arm in after for delta in compare_arms(results, before, arm, keys=compared)]
        stdout.print()
        stdout.print(before_after_table(results, deltas).to_rich())


def _unknown(arm: str, known: Iterable[str]) -> str:
    known = list(known)
    return f"unknown arm {arm!r}{did_you_mean(arm, known)}; there is {', '.join(known) or 'none'}"


def _common_metrics(results: Results, key: str, *arms: str) -> list[str]:
    held = [result for arm in arms for result in results.measured(key, arm)]
    main = held[0].main_metric
    others = [metric for metric in held[0].per_query_metrics if all(metric in r.per_query_metrics for r in held)]
    return [main, *others]


def _by_query(results: Results, arm: str, key: str, metrics: Sequence[str]) -> Array:
    """Per-query values averaged over seeds, ``(queries, metrics)``."""
    seeds: list[Seed] = [result.seed for result in results.measured(key, arm)]
    return np.column_stack([results.scores(arm, key, seeds, metric).mean(axis=0) for metric in metrics])


def _deltas(
    key: str,
    before: str,
    after: str,
    metrics: Sequence[str],
    first: Array,
    second: Array,
    level: float,
    iterations: int,
    seed: int,
) -> Iterable[ArmDelta]:
    differences = second - first
    differences[np.abs(differences) < _ROUNDING] = 0.0
    lows, highs = _intervals(differences, level, iterations, seed)
    p_values = sign_flip_p(differences, iterations, seed)
    for i, metric in enumerate(metrics):
        column = differences[:, i]
        yield ArmDelta(
            key=key,
            before=before,
            after=after,
            metric=metric,
            queries=len(column),
            before_mean=float(first[:, i].mean()),
            after_mean=float(second[:, i].mean()),
            delta=float(column.mean()),
            low=float(lows[i]),
            high=float(highs[i]),
            level=level,
            p=float(p_values[i]),
            wins=int((column > 0).sum()),
            ties=int((column == 0).sum()),
            losses=int((column < 0).sum()),
        )


def _intervals(differences: Array, level: float, iterations: int, seed: int) -> tuple[Array, Array]:
    """Bootstrap-t: the quantiles of the resampled t statistics change sides, since they lie around the mean."""
    deltas = differences.mean(axis=0)
    errors = standard_deviations(differences) / math.sqrt(len(differences))
    if len(differences) < 2:
        return np.full_like(deltas, -np.inf), np.full_like(deltas, np.inf)
    _, t = bootstrap_t(differences, iterations, seed)
    lowest = np.quantile(t, (1.0 - level) / 2.0, axis=0, method="lower")
    highest = np.quantile(t, (1.0 + level) / 2.0, axis=0, method="higher")
    varying = errors > 0.0
    lows, highs = deltas.copy(), deltas.copy()
    lows[varying] -= (highest * errors)[varying]
    highs[varying] -= (lowest * errors)[varying]
    return lows, highs


def _row(delta: ArmDelta) -> tuple[Cell, ...]:
    return (
        Cell(delta.metric),
        *(mean_cell([100 * value]) for value in (delta.before_mean, delta.after_mean)),
        *(signed_cell(100 * value) for value in (delta.delta, delta.low, delta.high)),
        Cell(f"{delta.p:.4f}" if delta.p >= 0.00005 else "<0.0001", value=delta.p),
        Cell(f"{delta.wins:,}/{delta.ties:,}/{delta.losses:,}"),
    )
