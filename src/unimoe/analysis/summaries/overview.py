"""The table that papers print: one number per arm and dataset, and the averages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from unimoe.analysis.loading import Results
from unimoe.analysis.significance import Comparison
from unimoe.analysis.summaries.arms import arm_order, caveat_notes, marked, queries_range
from unimoe.analysis.summaries.symbols import Symbols, significance_symbols
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.metrics import dataset_group, suite_averages
from unimoe.results import TASKS, Task


def overview_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Datasets in rows and arms in columns, as in the papers of BEIR: arms are few, datasets are many.

    Each block holds the datasets of one task and one main metric, so that an average never mixes metrics. It takes the
    parts of one set once (CQADupStack), and an arm that lacks a dataset has none.

    Args:
        results: what ``load_all_results`` returned.
        comparisons: what ``compute_significance`` returned on them; their outcomes stand as symbols.

    Returns:
        A table; without rows where there is only one dataset per task and metric, and the comparison table says it all.
    """
    arms = sorted(results, key=arm_order)
    symbols = significance_symbols(comparisons)
    blocks = {place: keys for place, keys in _blocks(results).items() if len(keys) > 1}
    once = any(dataset_group(r.dataset) != r.dataset for r in results.results)
    parts = ["The forums of CQADupStack enter an average as one dataset."] if once else []
    return Table(
        name="overview",
        title="Scores by dataset",
        caption=(
            "Main metric × 100 by dataset, mean over seeds: best of each row bold, second best underlined, "
            f"{queries_range(results)}"
        ),
        columns=("Dataset", "Queries", *arms),
        groups=tuple(
            RowGroup(f"{task}, {metric}", tuple(_rows(results, metric, keys, arms, symbols)))
            for (task, metric), keys in blocks.items()
        ),
        notes=(*filter(None, [symbols.note]), *parts, *caveat_notes(results)),
    )


def _blocks(results: Results) -> dict[tuple[Task, str], list[str]]:
    blocks: dict[tuple[Task, str], list[str]] = {}
    for key in results.dataset_keys:
        first = results.measured(key)[0]
        blocks.setdefault((first.task, first.main_metric), []).append(key)
    return dict(sorted(blocks.items(), key=lambda block: TASKS.index(block[0][0])))


def _rows(
    results: Results, metric: str, keys: Sequence[str], arms: Sequence[str], symbols: Symbols
) -> Iterator[tuple[Cell, ...]]:
    scores: dict[str, dict[str, dict[str, float]]] = {arm: {} for arm in arms}
    for key in keys:
        dataset = key.partition("/")[2]
        for arm in arms:
            values = [r.aggregate[metric] for r in results.measured(key, arm) if metric in r.aggregate]
            if values:
                scores[arm][dataset] = {metric: math.fsum(values) / len(values)}
        queries = len(results.measured(key)[0].per_query)
        cells = [_cell(scores[arm].get(dataset, {}), metric, symbols.of.get((key, arm), "")) for arm in arms]
        yield Cell(dataset), Cell(f"{queries:,}", value=queries), *marked(cells)
    main_metrics = {key.partition("/")[2]: metric for key in keys}
    groups = len(set(map(dataset_group, main_metrics)))
    means = [_cell(suite_averages(main_metrics, scores[arm]), metric) for arm in arms]
    yield Cell(f"average of {groups}"), Cell(ABSENT), *marked(means)


def _cell(scores: Mapping[str, float], metric: str, symbols: str = "") -> Cell:
    if metric not in scores:
        return Cell(ABSENT)
    return Cell(f"{100 * scores[metric]:.2f}", value=100 * scores[metric], symbols=symbols)
