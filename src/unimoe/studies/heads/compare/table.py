"""What came out of a comparison, as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.loading import Results
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, count_cell, marked, mean_cell, signed_cell
from unimoe.analysis.tables.differences import (
    NO_DIFFERENCE,
    TESTED,
    Arms,
    Difference,
    differences,
    mean_interval,
    pair_up,
)
from unimoe.data.catalog import result_name
from unimoe.io import read_json
from unimoe.results import arm_dir
from unimoe.studies.heads.compare.arms import ARMS, Comparison
from unimoe.studies.heads.compare.methods import TRAINING_FILE, Chosen

BASELINES = ("infonce", "zero_shot")

_COLUMNS = (
    "method", "train", "dev", "test", "95 % interval", "gap", "vs InfoNCE", "interval", "p", "vs zero-shot",
    "interval ", "p ", "s", "peak MB", "weights kB", "setting",
)  # fmt: skip

_NOTES = (
    "Scores x 100. train, test: mean over seeds ± SD; dev: the setting's one tuning run, chosen by it. Interval of the "
    "test mean for other seeds and other queries (over queries alone where there is no seed). gap: train minus test.",
    f"vs: difference of test means. {TESTED}Seeds pair where two methods share the order of the training queries and "
    "the first weights, as all but seed_recipe do.",
    "s: seconds of the training's steps, median over seeds. peak MB: what torch holds within a step beside weights and "
    "data. weights kB: what the weights between steps occupy, an optimizer's moments not counted.",
)


def method_table(results: Results, comparison: Comparison, chosen: Mapping[str, Chosen], notes: Sequence[str]) -> Table:
    """One row per method, in the order of ``ARMS``.

    Args:
        results: those of the comparison's folder.
        comparison: what was compared.
        chosen: setting of each method.
        notes: facts about the pools.
    """
    base = comparison.base
    dataset = result_name(base.task)
    key, metric = f"reranking/{dataset}", f"ndcg@{base.ndcg_k}"
    names = [name for name in ARMS if name in chosen]
    scores = {name: results.scores(name, key, results.seeds(name, key) or [None]) for name in names}
    found = differences(
        {
            (name, baseline): Arms(scores[name], scores[baseline], pair_up(results, key, name, baseline))
            for baseline in BASELINES
            for name in names
            if baseline in scores and name != baseline
        }
    )
    records = {name: _records(results, name, key) for name in names}
    test = marked([mean_cell([100.0 * float(row.mean()) for row in scores[name]]) for name in names])
    rows = [
        _row(name, scores[name], cell, records[name], chosen[name], [found.get((name, b)) for b in BASELINES])
        for name, cell in zip(names, test, strict=True)
    ]
    seeds, queries = len(comparison.seeds), next(iter(scores.values())).shape[1]
    return Table(
        name="methods",
        caption=f"{metric} of heads on {dataset}: {queries:,} test queries, {seeds} seeds, {base.num_steps} steps, "
        f"{comparison.settings} settings of each method tried on dev.",
        columns=_COLUMNS,
        groups=(RowGroup("", tuple(rows)),),
        notes=(*_NOTES, *(f"{name}: {ARMS[name].what}." for name in names), *notes, *caveat_notes(results)),
        csv_only=frozenset({"setting"}),
        title="Methods",
    )


def _row(
    name: str,
    scores: NDArray[np.float64],
    test: Cell,
    records: Sequence[Mapping[str, Any]],
    chosen: Chosen,
    against: Sequence[Difference | None],
) -> tuple[Cell, ...]:
    train = [100.0 * record["train"] for record in records]
    gap = float(np.mean(train)) - 100.0 * float(scores.mean())
    peaks = [record["peak_bytes"] for record in records if record["peak_bytes"] is not None]
    trained = bool(peaks)
    compared = [cell for found in against for cell in (found.cells if found else NO_DIFFERENCE)]
    setting = ", ".join(f"{knob} {value:g}" for knob, value in chosen.knobs.items())
    return (
        Cell(name),
        mean_cell(train),
        mean_cell([100.0 * max(tried["val"] for tried in chosen.tried)] if chosen.tried else []),
        test,
        mean_interval(scores),
        signed_cell(gap),
        *compared,
        _number(float(np.median([record["seconds"] for record in records])), 1) if trained else Cell(ABSENT),
        _number(max(peaks) / 1e6, 1) if trained else Cell(ABSENT),
        count_cell(round(records[0]["weight_bytes"] / 1e3)) if trained else Cell(ABSENT),
        Cell(setting or ABSENT),
    )


def _number(value: float, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}", value=value)


def _records(results: Results, name: str, key: str) -> list[dict[str, Any]]:
    seeds = results.seeds(name, key) or (None,)
    return [read_json(arm_dir(results.output_dir, name, seed) / TRAINING_FILE) for seed in seeds]
