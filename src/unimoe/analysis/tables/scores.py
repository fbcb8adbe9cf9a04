"""Scores of all systems: every metric of every dataset, and the tables that papers print; and what training saw.

And what cut and quantised vectors take, with their scores and what these lose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import ALPHA, Comparison, Question, blocks_of, compare_arms, reaches_cutoff, systems_of
from unimoe.analysis.formats import metric_name
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.tables.cells import ABSENT, Cell, Cells, RowGroup, caveat_notes, marked, name_cells, row_groups
from unimoe.analysis.tables.comparisons import COLUMNS, Marks, correction_text, limits, significance_marks
from unimoe.analysis.tables.table import Table
from unimoe.checks.rankings import unjudged
from unimoe.core.console import stdout
from unimoe.core.grouping import gathered, natural_key
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import dataset_group, suite_averages
from unimoe.results.folder import Results, load_all_results

_TESTED = ("After", "Delta", "Low", "High", "p", "Corrected")


def generate_comparison_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return every system on every ``task/dataset`` and metric: mean over seeds, standard deviation, best, second best.

    Args:
        results: what ``load_all_results`` returned.
        comparisons: what ``compute_significance`` returned on them, or ``Analysis.all_comparisons``; letters behind a
            score then name the systems it beats significantly.
    """
    # The datasets that show each metric, and those with candidates that end before its cutoff.
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
            columns=("System", *(("#",) if marks.letters else ()), *metrics, "Unjudged", "Seeds"),
            groups=tuple(groups),
            notes=(
                *marks.notes,
                *(
                    f"No {metric_name(metric)} on {', '.join(shallow[metric])}, whose candidates do not reach as deep."
                    for metric in sorted(shallow, key=natural_key)
                ),
                *_facts(results),
                *_unjudged(results),
                *caveat_notes(results),
            ),
        )
    )


def overview_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Return systems in rows, datasets and their average in columns, on main metrics: as papers on BEIR have it.

    Each block holds the datasets of one task and one main metric, so that an average never mixes metrics. It takes the
    parts of one set once (CQADupStack), and a system that lacks a dataset has none. There are no rows where no block
    has several datasets: the comparison table says it all.
    """
    blocks, marks = blocks_of(results), significance_marks(results, [c for c in comparisons if c.main])
    names, cut = name_cells(key.partition("/")[2] for key in results.dataset_keys)
    groups = []
    for (task, metric), keys in blocks.items():
        of_block = {key.partition("/")[2]: key for key in keys}
        scores = {system: _means(results, system, keys, metric) for system in systems_of(results.results)}
        scores = {system: of for system, of in scores.items() if of}
        columns = [[Cell(marks.letters.get(system, ABSENT)) for system in scores]]
        for name in names:
            means = {system: of.get(name, {}).get(metric) for system, of in scores.items()}
            columns.append(_column(means, marks, (of_block.get(name, ""),), metric))
        averages = {s: suite_averages(dict.fromkeys(of_block, metric), of).get(metric) for s, of in scores.items()}
        columns.append(_column(averages, marks, keys, metric) if len(keys) > 1 else [Cell(ABSENT)] * len(scores))
        heading = f"{task}, {metric_name(metric)}" if len(blocks) > 1 else ""
        groups.append(RowGroup(heading, tuple(zip(map(Cell, scores), *columns, strict=True))))
    metrics = {metric_name(metric) for _, metric in blocks}
    what = metrics.pop() if len(metrics) == 1 else "Main metric"
    table = Table(
        name="overview",
        title="Scores by dataset",
        caption=(
            f"{what} × 100 by dataset, mean over seeds: best of each column bold, second best underlined, "
            f"{_queries(results)}"
        ),
        columns=("System", "#", *(cell.text for cell in names.values()), "Average"),
        groups=tuple(groups) if any(len(keys) > 1 for keys in blocks.values()) else (),
        notes=(*marks.notes, *_counted(results), *cut, *caveat_notes(results)),
    )
    return _without_empty_columns(table)


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


def _without_empty_columns(table: Table) -> Table:
    """Leave out the columns in which no row has anything."""
    return table.select([not column or any(cell.text != ABSENT for cell in column) for column in table.by_column])


def _queries(results: Results) -> str:
    counts = {len(results.queries(first.key)) for first in results.firsts} or {0}
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
    shares = ([one.share for run in runs for one in unjudged(run.checks)] for runs in runs_of.values())
    unseen = (Cell.number(100 * fmean(found), ".1f") if found else Cell(ABSENT) for found in shares)
    rows = zip(map(Cell, runs_of), *letters, *columns, unseen, seeds, strict=True)
    return RowGroup(f"{key} ({len(results.queries(key)):,} queries)", tuple(rows))


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


def _unjudged(results: Results) -> Iterator[str]:
    """Yield what the share of unjudged documents is of."""
    cutoffs = sorted({one.cutoff for run in results.results for one in unjudged(run.checks)})
    if cutoffs:
        yield f"Unjudged: % of the first {' or '.join(map(str, cutoffs))} documents of a query that nobody judged."


def _counted(results: Results) -> Iterator[str]:
    """Yield what counts once in an average, and the datasets where binary measures count from another grade than 1."""
    if any(dataset_group(first.dataset) != first.dataset for first in results.firsts):
        yield "The forums of CQADupStack count together as one dataset in an average."
    keys = gathered((first.relevance_level, first.key) for first in results.firsts)
    yield from (f"Relevance level {level}: {', '.join(keys[level])}." for level in sorted(keys) if level != 1)


def _means(results: Results, system: str, keys: Iterable[str], metric: str) -> dict[str, dict[str, float]]:
    """Return the mean of a system over its runs by dataset, as ``suite_averages`` takes it."""
    found = gathered((r.dataset, r.aggregate[metric]) for key in keys for r in results.measured(key, system))
    return {dataset: {metric: fmean(values)} for dataset, values in found.items()}


def _column(means: Mapping[str, float | None], marks: Marks, place: tuple[str, ...], metric: str) -> list[Cell]:
    """Return the cells of systems on a dataset, or on the average of several."""
    cells = {system: Cell.number(None if mean is None else 100 * mean, ".2f") for system, mean in means.items()}
    return marked([replace(cell, symbols=marks.behind(place, metric, system)) for system, cell in cells.items()])


def print_sizes(output_dir: Path, whole: str, sizes: Sequence[str], keys: Sequence[str]) -> None:
    """Print what systems of other sizes take and lose against the one of whole vectors, on ``task/dataset`` keys."""
    if keys and sizes:
        results = load_all_results(output_dir, only={(arm, key) for arm in (whole, *sizes) for key in keys})
        found = compare_arms(results, [Question(key, size, whole) for key in keys for size in sizes])
        stdout.print()
        stdout.print(sizes_table(results, found).to_rich())


def sizes_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for the whole vectors of each dataset, and one for each size that is compared with them."""

    def rows() -> Iterator[tuple[str, Cells]]:
        seen = set()
        for c in comparisons:
            heading = f"{c.key}, {metric_name(c.metric)}: {c.baseline}, {c.queries:,} queries"
            if c.key not in seen:
                seen.add(c.key)
                absent = [Cell.number(None)] * (len(_TESTED) - 1)
                yield heading, (*_index_cells(results, c.key, c.baseline), COLUMNS["Before"](c), *absent)
            yield heading, (*_index_cells(results, c.key, c.system), *(COLUMNS[name](c) for name in _TESTED))

    return Table(
        name="sizes",
        title="Sizes of vectors",
        caption="Vectors cut and quantised from one encoding, and the difference of their score from that of whole "
        f"vectors, in points (score × 100) with its {100 * LEVEL:g} % interval",
        columns=("Dims", "Precision", "Bytes", "MiB", "ms", "Score", *_TESTED[1:-1], "p (Holm)"),
        groups=row_groups(rows()),
        notes=(
            "Bytes of a vector and MiB of the corpus, as queries are compared with it; ms for the search of a query. "
            "binary: bits choose candidates, which retrieval.rescore ranks by vectors that may stay on disk.",
            f"p: two-sided t from the model of seeds and queries, level {ALPHA:g}; {correction_text(comparisons)}.",
            *limits(comparisons),
            *caveat_notes(results),
        ),
    )


def _index_cells(results: Results, key: str, system: str) -> Cells:
    """Return what the vectors of a system take; its name and nothing else where an earlier version searched."""
    index = results.measured(key, system)[0].vector_index
    if index is None:
        return (Cell(system), *[Cell.number(None)] * 4)
    size = index.bytes_per_vector * index.documents / 2**20
    sizes = Cell.count(index.bytes_per_vector), Cell.number(size, ",.2f"), Cell.number(index.search_ms, ",.2f")
    return (Cell.count(index.dims), Cell(index.precision), *sizes)
