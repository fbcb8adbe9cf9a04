"""Scores of all systems: every metric of every dataset, and the tables that papers print; and what training saw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import Comparison, average_name, blocks_of, reaches_cutoff, systems_of
from unimoe.analysis.tables.cells import (
    ABSENT,
    Cell,
    RowGroup,
    caveat_notes,
    marked,
    metric_name,
    name_cells,
    row_groups,
)
from unimoe.analysis.tables.comparisons import Marks, significance_marks
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered, natural_key
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import dataset_group, suite_averages
from unimoe.results.folder import Results


def generate_comparison_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return every system on every ``task/dataset`` and metric: mean over seeds, standard deviation, best, second best.

    Args:
        results: what ``load_all_results`` returned.
        comparisons: what ``compute_significance`` returned on them, or ``Analysis.tests``; letters behind a score then
            name the systems it beats significantly.
    """
    # The datasets that show each metric, and those whose candidates end before its cutoff.
    shown, shallow = dict[str, list[str]](), dict[str, list[str]]()
    for key in results.dataset_keys:
        runs = results.measured(key)
        for metric in {metric for run in runs for metric in run.aggregate}:
            deep = metric == runs[0].main_metric or any(reaches_cutoff(run, metric) for run in runs)
            (shown if deep else shallow).setdefault(metric, []).append(key)
    usual = [metric for metric in DEFAULT_METRICS if metric in shown]
    metrics = {m: shown[m] for m in (*usual, *sorted(shown.keys() - usual, key=natural_key))}
    marks = significance_marks(results, [c for c in comparisons if not c.parts])
    groups = [_group(results, key, metrics, marks) for key in results.dataset_keys]
    spread = any(cell.spread for group in groups for row in group.rows for cell in row)
    mean = "mean ± standard deviation over seeds, " if spread else ""
    return _without_empty_columns(
        Table(
            name="comparison",
            title="Scores",
            caption=f"Scores of all systems × 100: {mean}best bold, second best underlined, {_queries(results)}",
            columns=("System", *(("#",) if marks.letters else ()), *metrics, "Seeds"),
            groups=tuple(groups),
            notes=(
                *marks.notes,
                *(
                    f"No {metric_name(metric)} on {', '.join(shallow[metric])}, whose candidates do not reach as deep."
                    for metric in sorted(shallow, key=natural_key)
                ),
                *_facts(results),
                *caveat_notes(results),
            ),
        )
    )


def overview_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return datasets in rows and systems in columns, on main metrics: systems are few, datasets are many.

    Each block holds the datasets of one task and one main metric, so that an average never mixes metrics. It takes the
    parts of one set once (CQADupStack), and a system that lacks a dataset has none. A task and metric with one dataset
    has no block: the comparison table says it all.
    """
    blocks = {block: keys for block, keys in blocks_of(results).items() if len(keys) > 1}
    systems, marks = systems_of(results.results), significance_marks(results, [c for c in comparisons if c.main])
    names, cut = name_cells(key.partition("/")[2] for keys in blocks.values() for key in keys)
    return Table(
        name="overview",
        title="Scores by dataset",
        caption=_caption_by_dataset(results, blocks, "row"),
        columns=("Dataset", "Queries", *(f"{s} ({marks.letters[s]})" if marks.letters else s for s in systems)),
        groups=row_groups(
            (f"{task}, {metric_name(metric)}", (names.get(name) or Cell(name), Cell.count(queries), *cells))
            for (task, metric), keys in blocks.items()
            for name, queries, cells in _by_dataset(results, metric, keys, systems, marks)
        ),
        notes=(*marks.notes, *_notes_by_dataset(results), *cut, *caveat_notes(results)),
    )


def by_dataset_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return systems in rows, datasets and their average in columns, on main metrics: as papers on BEIR have it.

    Each block holds the datasets of one task and one main metric, as in ``overview_table``.
    """
    blocks, marks = blocks_of(results), significance_marks(results, [c for c in comparisons if c.main])
    names, cut = name_cells(key.partition("/")[2] for key in results.dataset_keys)
    groups = []
    for (task, metric), keys in blocks.items():
        systems = [
            system for system in systems_of(results.results) if any(results.measured(key, system) for key in keys)
        ]
        columns = {name: cells for name, _, cells in _by_dataset(results, metric, keys, systems, marks)}
        letters, absent = [Cell(marks.letters.get(s, ABSENT)) for s in systems], [Cell(ABSENT)] * len(systems)
        scores = (columns.get(name, absent) for name in (*names, average_name(keys)))
        heading = f"{task}, {metric_name(metric)}" if len(blocks) > 1 else ""
        groups.append(RowGroup(heading, tuple(zip(map(Cell, systems), letters, *scores, strict=True))))
    return _without_empty_columns(
        Table(
            name="by_dataset",
            title="Scores by dataset",
            caption=_caption_by_dataset(results, blocks, "column"),
            columns=("System", "#", *(cell.text for cell in names.values()), "Average"),
            groups=tuple(groups),
            notes=(*marks.notes, *_notes_by_dataset(results), *cut, *caveat_notes(results)),
        )
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
        caption="What each system saw in training; TIR measures interference only where budgets agree",
        columns=("System", "Steps", "Ranking examples", "Embedding examples", "Tokens"),
        groups=row_groups(("", row) for row in rows),
        notes=caveat_notes(results),
    )


def _caption_by_dataset(results: Results, blocks: Iterable[tuple[str, str]], line: str) -> str:
    metrics = {metric_name(metric) for _, metric in blocks}
    what = f"{metrics.pop() if len(metrics) == 1 else 'Main metric'} × 100 by dataset, mean over seeds"
    return f"{what}: best of each {line} bold, second best underlined, {_queries(results)}"


def _without_empty_columns(table: Table) -> Table:
    """Leave out the columns in which no row has anything."""
    return table.select([any(cell.text != ABSENT for cell in column) for column in table.by_column])


def _queries(results: Results) -> str:
    counts = {len(first.per_query) for first in results.firsts} or {0}
    fewest, most = min(counts), max(counts)
    return f"n = {most:,} queries" if fewest == most else f"n = {fewest:,} to {most:,} queries"


def _group(results: Results, key: str, metrics: Mapping[str, Collection[str]], marks: Marks) -> RowGroup:
    """Return a row of each system on a dataset; ``metrics`` are given with the datasets that show them."""
    measured = results.measured(key)
    runs_of = {arm: results.measured(key, arm) for arm in systems_of(measured)}
    columns = []
    for metric, keys in metrics.items():
        cells = []
        for system, runs in runs_of.items():
            scores = [100.0 * r.aggregate[metric] for r in runs if metric in r.aggregate and key in keys]
            cells.append(replace(Cell.mean(scores), symbols=marks.behind((key,), metric, system)))
        columns.append(marked(cells))
    letters = [[Cell(marks.letters[system]) for system in runs_of]] if marks.letters else []
    seeds = (Cell.count(sum(run.seed is not None for run in runs) or None) for runs in runs_of.values())
    rows = zip(map(Cell, runs_of), *letters, *columns, seeds, strict=True)
    return RowGroup(f"{key} ({len(measured[0].per_query):,} queries)", tuple(rows))


def _facts(results: Results) -> Iterator[str]:
    """Yield what the numbers rest on, and what cut them; datasets with the same facts share a line."""
    datasets: dict[str, list[str]] = {}
    for first in results.firsts:
        identity = first.identity
        facts = (
            f"split {identity.split}",
            f"{len(first.unjudged_queries):,} unjudged queries left out" if first.unjudged_queries else "",
            f"queries cut to {identity.max_queries:,}" if identity.max_queries is not None else "",
            f"candidates from {identity.first_stage}" if identity.first_stage is not None else "",
            f"depth {identity.depth:,}" if identity.depth is not None else "no candidate cut",
            f"pool of {identity.pool:,} documents" if identity.pool is not None else "",
            f"relevance level {first.relevance_level}" if first.relevance_level != 1 else "",
        )
        how = f"{', '.join(filter(None, facts))}; main metric {metric_name(first.main_metric)}"
        datasets.setdefault(how, []).append(first.key)
    yield from (f"{', '.join(keys)}: {how}." for how, keys in datasets.items())


def _notes_by_dataset(results: Results) -> Iterator[str]:
    """Yield what counts once in an average, and the datasets whose binary measures count from another grade than 1."""
    if any(dataset_group(first.dataset) != first.dataset for first in results.firsts):
        yield "The forums of CQADupStack count together as one dataset in an average."
    keys = gathered((first.relevance_level, first.key) for first in results.firsts)
    yield from (f"Relevance level {level}: {', '.join(keys[level])}." for level in sorted(keys) if level != 1)


def _by_dataset(
    results: Results, metric: str, keys: tuple[str, ...], systems: Sequence[str], marks: Marks
) -> Iterator[tuple[str, int | None, list[Cell]]]:
    """Yield each dataset of a block with its number of queries and a cell of each system, and their average last."""

    def cells(place: tuple[str, ...], means: Sequence[Mapping[str, float]]) -> list[Cell]:
        shown = [Cell.number(100 * mean[metric], ".2f") if mean else Cell(ABSENT) for mean in means]
        symbols = [marks.behind(place, metric, system) for system in systems]
        return marked([replace(cell, symbols=raised) for cell, raised in zip(shown, symbols, strict=True)])

    main_metrics = {key.partition("/")[2]: metric for key in keys}
    scores: dict[str, dict[str, dict[str, float]]] = {system: {} for system in systems}
    for key, dataset in zip(keys, main_metrics, strict=True):
        for system in systems:
            if values := [r.aggregate[metric] for r in results.measured(key, system) if metric in r.aggregate]:
                scores[system][dataset] = {metric: fmean(values)}
        queries = len(results.measured(key)[0].per_query)
        yield dataset, queries, cells((key,), [scores[system].get(dataset, {}) for system in systems])
    if len(keys) > 1:
        yield average_name(keys), None, cells(keys, [suite_averages(main_metrics, scores[s]) for s in systems])
