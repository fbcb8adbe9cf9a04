"""Scores of all arms: every metric of every dataset, and the table that papers print; and what training saw."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, RowGroup, caveat_notes, marked, name_cells, row_groups
from unimoe.analysis.tables.comparisons import Marks, significance_marks
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered, natural_key
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import dataset_group, suite_averages
from unimoe.results import TASKS, EvalResult
from unimoe.results.folder import Results


def generate_comparison_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return every arm on every ``task/dataset`` and metric: mean over seeds, standard deviation, best and second best.

    Args:
        results: what ``load_all_results`` returned.
        comparisons: what ``compute_significance`` returned on them; letters behind a score on the main metric then name
            the arms it beats significantly.
    """
    metrics = _metrics(results)
    marks = significance_marks(results, comparisons)
    return Table(
        name="comparison",
        title="Scores",
        caption=(
            "Scores of all arms × 100: mean ± standard deviation over seeds, best bold, second best underlined, "
            f"{_queries_range(results)}"
        ),
        columns=("Arm", *(("#",) if marks.letters else ()), *metrics, "Seeds"),
        groups=tuple(_group(results, key, metrics, marks) for key in results.dataset_keys),
        notes=(*marks.notes, *_too_shallow(results, metrics), *_facts(results), *caveat_notes(results)),
    )


def overview_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return datasets in rows and arms in columns, as in the papers of BEIR: arms are few, datasets are many.

    Each block holds the datasets of one task and one main metric, so that an average never mixes metrics. It takes the
    parts of one set once (CQADupStack), and an arm that lacks a dataset has none. A task and metric with one dataset
    has no block: the comparison table says it all.
    """
    arms = sorted({result.config_name for result in results.results}, key=arm_order)
    marks = significance_marks(results, comparisons)
    firsts = ((results.measured(key)[0], key) for key in results.dataset_keys)
    blocks = gathered(((first.task, first.main_metric), key) for first, key in firsts)
    blocks = {block: keys for block, keys in blocks.items() if len(keys) > 1}
    names, cut = name_cells(key.partition("/")[2] for keys in blocks.values() for key in keys)
    once = any(dataset_group(result.dataset) != result.dataset for result in results.results)
    parts = ["The forums of CQADupStack count together as one dataset in an average."] if once else []
    return Table(
        name="overview",
        title="Scores by dataset",
        caption=(
            "Main metric × 100 by dataset, mean over seeds: best of each row bold, second best underlined, "
            f"{_queries_range(results)}"
        ),
        columns=("Dataset", "Queries", *(f"{arm} ({marks.letters[arm]})" if marks.letters else arm for arm in arms)),
        groups=row_groups(
            (f"{task}, {metric}", row)
            for (task, metric), keys in sorted(blocks.items(), key=lambda block: TASKS.index(block[0][0]))
            for row in _dataset_rows(results, metric, keys, arms, names, marks)
        ),
        notes=(*marks.notes, *parts, *_levels(results), *cut, *caveat_notes(results)),
    )


def training_table(results: Results) -> Table:
    """Return what each trained arm saw: the budgets that must agree for TIR to measure interference."""
    seen = {(r.config_name, r.seed): r.training for r in results.everything if r.training is not None}
    rows = (
        (Cell(f"{arm} seed {seed}"), *map(Cell.count, (t.steps, t.ranking_examples, t.embedding_examples, t.tokens)))
        for (arm, seed), t in sorted(seen.items(), key=lambda item: (arm_order(item[0][0]), item[0][1] or 0))
    )
    return Table(
        name="training",
        title="Training budgets",
        caption="What each arm saw in training; TIR measures interference only where budgets agree",
        columns=("Arm", "Steps", "Ranking examples", "Embedding examples", "Tokens"),
        groups=row_groups(("", row) for row in rows),
        notes=caveat_notes(results),
    )


def _queries_range(results: Results) -> str:
    counts = {len(results.measured(key)[0].per_query) for key in results.dataset_keys} or {0}
    fewest, most = min(counts), max(counts)
    return f"n = {most:,} queries" if fewest == most else f"n = {fewest:,} to {most:,} queries"


def _metrics(results: Results) -> tuple[str, ...]:
    """Return the metrics that have numbers to show, the usual ones first, cutoffs in the order of numbers."""
    found = {metric for key in results.dataset_keys for metric in _shown(results, key)}
    known = [metric for metric in DEFAULT_METRICS if metric in found]
    return (*known, *sorted(found.difference(known), key=natural_key))


def _shown(results: Results, key: str) -> set[str]:
    """Return the metrics of a dataset that look no deeper than its candidates reach, and the main metric always."""
    measured = results.measured(key)
    held = {metric for result in measured for metric in result.aggregate}
    return {m for m in held if m == measured[0].main_metric or any(_deep_enough(r, m) for r in measured)}


def _deep_enough(result: EvalResult, metric: str) -> bool:
    """Return whether there are as many candidates as a metric looks at; MTEB's metrics have names of any kind."""
    cutoff = re.search(r"@(\d+)$", metric)
    return result.identity.depth is None or cutoff is None or int(cutoff[1]) <= result.identity.depth


def _too_shallow(results: Results, metrics: Sequence[str]) -> Iterator[str]:
    held = {metric for result in results.results for metric in result.aggregate}
    dropped = sorted(held.difference(metrics), key=natural_key)
    if dropped:
        depths = sorted({r.identity.depth for r in results.results if r.identity.depth is not None})
        listed = ", ".join(f"{depth:,}" for depth in depths)
        yield f"Left out, deeper than the candidates (depth {listed}): {', '.join(dropped)}."
    for metric in metrics:
        absent = [
            key
            for key in results.dataset_keys
            if metric not in _shown(results, key) and any(metric in r.aggregate for r in results.measured(key))
        ]
        if absent:
            yield f"No {metric} on {', '.join(absent)}, whose candidates do not reach as deep."


def _group(results: Results, key: str, metrics: Sequence[str], marks: Marks) -> RowGroup:
    measured = results.measured(key)
    main_metric, shown = measured[0].main_metric, _shown(results, key)
    of_arm = {arm: results.measured(key, arm) for arm in sorted({r.config_name for r in measured}, key=arm_order)}
    columns = []
    for metric in metrics:
        cells = []
        for arm, runs in of_arm.items():
            scores = [100.0 * r.aggregate[metric] for r in runs if metric in r.aggregate and metric in shown]
            cells.append(replace(Cell.mean(scores), symbols=marks.behind(key, arm) if metric == main_metric else ""))
        columns.append(marked(cells))
    letters = [[Cell(marks.letters[arm]) for arm in of_arm]] if marks.letters else []
    seeds = (sum(result.seed is not None for result in runs) for runs in of_arm.values())
    numbers = (Cell.count(number or None) for number in seeds)
    rows = zip(map(Cell, of_arm), *letters, *columns, numbers, strict=True)
    return RowGroup(f"{key} ({len(measured[0].per_query):,} queries)", tuple(rows))


def _facts(results: Results) -> Iterator[str]:
    """Yield what the numbers rest on, and what cut them; datasets with the same facts share a line."""
    datasets = gathered((_measured_how(results.measured(key)[0]), key) for key in results.dataset_keys)
    yield from (f"{', '.join(keys)}: {facts}." for facts, keys in datasets.items())


def _measured_how(result: EvalResult) -> str:
    identity = result.identity
    parts = (
        f"split {identity.split}",
        f"{len(result.unjudged_queries):,} unjudged queries left out" if result.unjudged_queries else "",
        f"queries cut to {identity.max_queries:,}" if identity.max_queries is not None else "",
        f"candidates from {identity.first_stage}" if identity.first_stage is not None else "",
        f"depth {identity.depth:,}" if identity.depth is not None else "no candidate cut",
        f"pool of {identity.pool:,} documents" if identity.pool is not None else "",
        f"relevance level {result.relevance_level}" if result.relevance_level != 1 else "",
    )
    return f"{', '.join(filter(None, parts))}; main metric {result.main_metric}"


def _levels(results: Results) -> Iterator[str]:
    """Yield the datasets whose binary measures count from another grade than 1."""
    keys = gathered((results.measured(key)[0].relevance_level, key) for key in results.dataset_keys)
    yield from (f"Relevance level {level}: {', '.join(keys[level])}." for level in sorted(keys) if level != 1)


def _dataset_rows(
    results: Results, metric: str, keys: Sequence[str], arms: Sequence[str], names: Mapping[str, Cell], marks: Marks
) -> Iterator[Row]:
    """Yield a row for each dataset of one task, and one for their average."""
    scores: dict[str, dict[str, dict[str, float]]] = {arm: {} for arm in arms}
    for key in keys:
        dataset = key.partition("/")[2]
        for arm in arms:
            values = [r.aggregate[metric] for r in results.measured(key, arm) if metric in r.aggregate]
            if values:
                scores[arm][dataset] = {metric: math.fsum(values) / len(values)}
        cells = [_cell(scores[arm].get(dataset, {}), metric, marks.behind(key, arm)) for arm in arms]
        yield names[dataset], Cell.count(len(results.measured(key)[0].per_query)), *marked(cells)
    main_metrics = {key.partition("/")[2]: metric for key in keys}
    means = [_cell(suite_averages(main_metrics, scores[arm]), metric) for arm in arms]
    yield Cell(f"average of {len(set(map(dataset_group, main_metrics)))}"), Cell(ABSENT), *marked(means)


def _cell(scores: Mapping[str, float], metric: str, symbols: str = "") -> Cell:
    return replace(Cell.number(100 * scores[metric], ".2f"), symbols=symbols) if metric in scores else Cell(ABSENT)
