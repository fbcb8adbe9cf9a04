"""All arms on all metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from unimoe.analysis.loading import Results
from unimoe.analysis.significance import Comparison
from unimoe.analysis.summaries.arms import arm_order, caveat_notes, marked, queries_range, score_cell
from unimoe.analysis.summaries.symbols import Symbols, significance_symbols
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.metrics import DEFAULT_METRICS
from unimoe.results import EvalResult


def generate_comparison_table(results: Results, comparisons: Sequence[Comparison] = ()) -> Table:
    """Every arm on every ``task/dataset`` and metric: mean over seeds, standard deviation, best and second best.

    Args:
        results: what ``load_all_results`` returned.
        comparisons: what ``compute_significance`` returned on them; their outcomes stand as symbols behind the scores
            of the main metric, the only one they are about.
    """
    metrics = _metrics(results)
    symbols = significance_symbols(comparisons)
    return Table(
        name="comparison",
        title="Scores",
        caption=(
            "Scores of all arms × 100: mean ± standard deviation over seeds, best bold, second best underlined, "
            f"{queries_range(results)}"
        ),
        columns=("Arm", *metrics, "Seeds"),
        groups=tuple(_group(results, key, metrics, symbols) for key in results.dataset_keys),
        notes=(*filter(None, [symbols.note]), *_facts(results), *caveat_notes(results)),
    )


def _metrics(results: Results) -> tuple[str, ...]:
    found = {metric for r in results.results for metric in r.aggregate}
    known = [metric for metric in DEFAULT_METRICS if metric in found]
    return (*known, *sorted(found.difference(known)))


def _group(results: Results, key: str, metrics: Sequence[str], symbols: Symbols) -> RowGroup:
    measured = results.measured(key)
    main_metric = measured[0].main_metric
    of_arm = {arm: results.measured(key, arm) for arm in sorted({r.config_name for r in measured}, key=arm_order)}
    columns = [marked([score_cell(runs, metric) for runs in of_arm.values()]) for metric in metrics]
    rows = []
    for i, (arm, runs) in enumerate(of_arm.items()):
        raised = {main_metric: symbols.of.get((key, arm), "")}
        scores = (replace(c[i], symbols=raised.get(metric, "")) for metric, c in zip(metrics, columns, strict=True))
        seeds = sum(r.seed is not None for r in runs)
        rows.append((Cell(arm), *scores, Cell(str(seeds), value=seeds) if seeds else Cell(ABSENT)))
    return RowGroup(f"{key} ({len(measured[0].per_query):,} queries)", tuple(rows))


def _facts(results: Results) -> Iterator[str]:
    """What the numbers rest on, and what cut them; datasets with the same facts share a line."""
    datasets: dict[str, list[str]] = {}
    for key in results.dataset_keys:
        datasets.setdefault(_measured_how(results.measured(key)[0]), []).append(key)
    for facts, keys in datasets.items():
        yield f"{', '.join(keys)}: {facts}."


def _measured_how(result: EvalResult) -> str:
    identity = result.identity
    parts = [f"split {identity.split}"]
    if result.unjudged_queries:
        parts.append(f"{len(result.unjudged_queries):,} unjudged queries left out")
    if identity.max_queries is not None:
        parts.append(f"queries cut to {identity.max_queries:,}")
    if identity.first_stage is not None:
        parts.append(f"candidates from {identity.first_stage}")
    parts.append(f"depth {identity.depth:,}" if identity.depth is not None else "no candidate cut")
    if identity.pool is not None:
        parts.append(f"pool of {identity.pool:,} documents")
    return f"{', '.join(parts)}; main metric {result.main_metric}"
