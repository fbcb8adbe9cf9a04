"""The tables of the analysis: scores of every arm, TIR by seed, paired comparisons, training budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unimoe.analysis.interference import Interference, InterferenceMetrics
from unimoe.analysis.loading import Results
from unimoe.analysis.significance import Comparison
from unimoe.analysis.tables import ABSENT, Cell, Mark, RowGroup, Table
from unimoe.metrics import DEFAULT_METRICS
from unimoe.results import EvalResult

_FIRST_ARMS = ("bm25", "zero_shot", "rank_only", "emb_only", "joint")


def generate_comparison_table(results: Results) -> Table:
    """Every arm on every ``task/dataset`` and metric: mean over seeds, standard deviation, best and second best."""
    metrics = _metrics(results)
    groups = tuple(_comparison_group(results, key, metrics) for key in results.dataset_keys)
    return Table(
        name="comparison",
        caption="Scores of all arms x 100: mean ± standard deviation over seeds, best bold, second best underlined",
        columns=("Arm", *metrics, "Seeds"),
        groups=groups,
        notes=(*(_facts(results, key) for key in results.dataset_keys), *caveat_notes(results)),
    )


def interference_table(results: Results, metrics: InterferenceMetrics) -> Table:
    """TIR by seed, and its mean, for every pair of arms and dataset."""
    return Table(
        name="interference",
        caption="Task interference by seed: TIR = (specialist - joint) / specialist, scores on the main metric x 100",
        columns=("Seed", "Specialist", "Joint", "Joint - specialist", "TIR (%)"),
        groups=tuple(RowGroup(_pair_heading(item), tuple(_tir_rows(item))) for item in metrics.measured),
        notes=(
            "Seeds are the training seeds both arms have; equal numbers do not make two training runs a pair.",
            *(f"{_pair_heading(item)}: {warning}" for item in metrics.measured for warning in item.warnings),
            *caveat_notes(results),
        ),
    )


def significance_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Paired comparisons over queries, differences in points (score x 100)."""
    keys = dict.fromkeys(c.key for c in comparisons)
    level = comparisons[0].level if comparisons else 0.95
    return Table(
        name="significance",
        caption=f"Paired comparisons over queries: difference (delta) with its {100 * level:g} % bootstrap interval",
        columns=("Comparison", "Seed", "Delta", "Low", "High", "p", "Holm", "d", "W/T/L"),
        groups=tuple(
            RowGroup(f"{key} ({n:,} queries)", tuple(_comparison_row(c) for c in comparisons if c.key == key))
            for key in keys
            for n in [next(c.queries for c in comparisons if c.key == key)]
        ),
        notes=(
            "Seed mean: per-query scores averaged over seeds first. Delta, low, high: in points. p: two-sided "
            "sign-flip permutation. Holm: p corrected within two families, averages over seeds and single seeds. "
            "d: mean over standard deviation of paired differences. W/T/L: queries won, tied, lost.",
            "These tests ask about other queries and take the trained seeds as they are.",
            *caveat_notes(results),
        ),
    )


def training_table(results: Results) -> Table:
    """What each trained arm saw: the budgets that must agree for TIR to measure interference."""
    seen = {(r.config_name, r.seed): r for r in results.results if r.training is not None}
    rows = [
        (
            Cell(f"{name} seed {seed}"),
            *(
                Cell(f"{value:,}", value=value)
                for value in (t.steps, t.ranking_examples, t.embedding_examples, t.tokens)
            ),
        )
        for (name, seed), result in sorted(seen.items(), key=lambda item: (arm_order(item[0][0]), item[0][1] or 0))
        if (t := result.training) is not None
    ]
    return Table(
        name="training",
        caption="What each arm saw in training; TIR measures interference only where budgets agree",
        columns=("Arm", "Steps", "Ranking examples", "Embedding examples", "Tokens"),
        groups=(RowGroup("", tuple(rows)),) if rows else (),
        notes=caveat_notes(results),
    )


def arm_order(name: str) -> tuple[int, str]:
    """Baselines first, then specialists, then joint arms, then all others by name."""
    known = (i for i, word in enumerate(_FIRST_ARMS) if name == word or name.startswith(f"{word}_"))
    return next(known, len(_FIRST_ARMS)), name


def caveat_notes(results: Results) -> tuple[str, ...]:
    """The caveats of the results, for every table and figure."""
    return tuple(f"Caveat: {caveat}" for caveat in results.caveats)


def _metrics(results: Results) -> tuple[str, ...]:
    found = {metric for r in results.results for metric in r.aggregate}
    known = [metric for metric in DEFAULT_METRICS if metric in found]
    return (*known, *sorted(found.difference(known)))


def _comparison_group(results: Results, key: str, metrics: Sequence[str]) -> RowGroup:
    measured = results.measured(key)
    arms = sorted({r.config_name for r in measured}, key=arm_order)
    of_arm = {arm: [r for r in measured if r.config_name == arm] for arm in arms}
    columns = [_marked([_score(of_arm[arm], metric) for arm in arms]) for metric in metrics]
    rows = []
    for i, arm in enumerate(arms):
        seeds = [r for r in of_arm[arm] if r.seed is not None]
        count = Cell(str(len(seeds)), value=len(seeds)) if seeds else Cell(ABSENT)
        rows.append((Cell(arm), *(column[i] for column in columns), count))
    return RowGroup(f"{key} ({len(measured[0].per_query):,} queries)", tuple(rows))


def _score(runs: Sequence[EvalResult], metric: str) -> Cell:
    values = [100 * r.aggregate[metric] for r in runs if metric in r.aggregate]
    if not values:
        return Cell(ABSENT)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Cell(f"{mean:.2f}", value=mean)
    std = float(np.std(values, ddof=1))
    return Cell(f"{mean:.2f}", f"{std:.2f}", value=mean, spread_value=std)


def _marked(cells: Sequence[Cell]) -> list[Cell]:
    """Best and second best as shown: what rounds to the same number shares its mark. One arm alone has no best."""
    shown = sorted({float(cell.text) for cell in cells if cell.value is not None}, reverse=True)
    if sum(cell.value is not None for cell in cells) < 2:
        return list(cells)
    marks: dict[str, Mark] = {f"{shown[0]:.2f}": "best"}
    if len(shown) > 1:
        marks[f"{shown[1]:.2f}"] = "second"
    return [Cell(c.text, c.spread, marks.get(c.text), c.value, c.spread_value) for c in cells]


def _facts(results: Results, key: str) -> str:
    """What the numbers of one dataset rest on, and what cut them."""
    first = results.measured(key)[0]
    identity = first.identity
    parts = [f"split {identity.split}", f"{len(first.per_query):,} judged queries"]
    if first.unjudged_queries:
        parts.append(f"{len(first.unjudged_queries):,} unjudged queries left out")
    if identity.max_queries is not None:
        parts.append(f"queries cut to {identity.max_queries:,}")
    if identity.first_stage is not None:
        parts.append(f"candidates from {identity.first_stage}")
    parts.append(f"depth {identity.depth:,}" if identity.depth is not None else "no candidate cut")
    parts.append(f"pool of {identity.pool:,} documents" if identity.pool is not None else "whole collection")
    return f"{key}: {', '.join(parts)}; main metric {first.main_metric}."


def _pair_heading(item: Interference) -> str:
    return f"{item.pair.task}/{item.dataset}: {item.pair.joint} against {item.pair.specialist}"


def _tir_rows(item: Interference) -> Iterator[tuple[Cell, ...]]:
    columns = [[100 * value for value in column] for column in _tir_columns(item)]
    for i, seed in enumerate(item.seeds):
        yield (Cell(str(seed)), *(Cell(f"{column[i]:.2f}", value=column[i]) for column in columns))
    if len(item.seeds) > 1:
        yield (Cell("mean"), *(_mean_cell(column) for column in columns))


def _tir_columns(item: Interference) -> tuple[tuple[float, ...], ...]:
    return item.specialist, item.joint, item.deltas, item.per_seed


def _mean_cell(values: Sequence[float]) -> Cell:
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    return Cell(f"{mean:.2f}", f"{std:.2f}", value=mean, spread_value=std)


def _comparison_row(c: Comparison) -> tuple[Cell, ...]:
    return (
        Cell(f"{c.system} - {c.baseline}"),
        Cell("mean" if c.seed is None else str(c.seed)),
        Cell(f"{100 * c.delta:+.2f}", value=100 * c.delta),
        Cell(f"{100 * c.low:+.2f}", value=100 * c.low),
        Cell(f"{100 * c.high:+.2f}", value=100 * c.high),
        _p_cell(c.p),
        _p_cell(c.p_holm),
        Cell(ABSENT) if c.effect is None else Cell(f"{c.effect:+.2f}", value=c.effect),
        Cell(f"{c.wins}/{c.ties}/{c.losses}"),
    )


def _p_cell(p: float) -> Cell:
    return Cell(f"{p:.4f}" if p >= 0.00005 else "<0.0001", value=p)
