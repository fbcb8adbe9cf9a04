"""What there is to see of each thing that a Python function returns, for the prompt, the notebook and a folder."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, singledispatch
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import to_jsonable_python

from unimoe.analysis.analysis import SystemComparison
from unimoe.analysis.comparisons import estimate_of_mean
from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.gates import wording
from unimoe.analysis.gates.definitions import Label
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.output import gates_as_json
from unimoe.analysis.statistics.estimates import LEVEL, Estimate
from unimoe.analysis.tables.cells import Cell, RowGroup, caveat_notes
from unimoe.analysis.tables.gates import gates_table
from unimoe.analysis.tables.table import Table
from unimoe.core.io import write_json
from unimoe.core.shown import Shown, View
from unimoe.core.trec import Run, write_run
from unimoe.metrics import Scores
from unimoe.results import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TIR(NamedTuple):
    """How much of the specialist's score a joint arm loses: ``(specialist - joint) / specialist``.

    Attributes:
        dataset: None for the value over all datasets, where there are several.
        value: a ratio, .02 for 2 %; NaN where the specialist does not score above 0.
        low: lower end of the 95 % interval; None where there is none.
        high: its upper end.
        label: PASS (interference), FAIL, MARGINAL or INCONCLUSIVE, by the gate's cutoffs.
        why: why the label is INCONCLUSIVE whatever the numbers are; empty where they decide.
        specialist_mean: in the metric's unit, 0 to 1.
        joint_mean: the same of the joint arm.
        advisory: why the label decides nothing, such as that the scores are unfit for decisions; empty where it may.
    """

    task: Task
    dataset: str | None
    metric: str
    specialist: str
    joint: str
    value: float
    low: float | None
    high: float | None
    label: Label
    why: str
    specialist_mean: float
    joint_mean: float
    queries: int
    advisory: str = ""


class Judgments(Shown, tuple[Judgment, ...]):
    """What gates say of the results, in their order."""


class TIRs(Shown, list[TIR]):
    """Rows of TIR, and the judgments that they come from."""

    judgments = Judgments()

    def __reduce__(self) -> tuple[type[list[TIR]], tuple[list[TIR]]]:
        return list, ([*self],)  # pickled, the rows are a plain list: judgments hold functions, and stay here

    @classmethod
    def of(cls, judgments: Sequence[Judgment]) -> TIRs:
        """Return a row for each dataset of each judgment, and one over all of them where there are several."""
        rows = cls()
        rows.judgments = Judgments(judgments)
        for judgment in judgments:
            gate = judgment.gate
            for found in (*judgment.parts, judgment.found):
                dataset = found.datasets[0] if len(found.datasets) == 1 else None
                ends = found.estimate.interval or (None, None)
                why = "; ".join(judgment.advisory)
                said = (found.value, *ends, found.label, found.why, *found.means, found.queries, why)
                rows.append(TIR(gate.task, dataset, gate.metric, *gate.arms, *said))
        return rows


def _judgments_figure(judged: Judgments) -> Figure:
    from unimoe.analysis.figures import judgments_figure  # matplotlib is only loaded by those who draw

    return judgments_figure(judged)


def _comparisons_figure(compared: SystemComparison) -> Figure:
    from unimoe.analysis.figures import comparisons_figure

    return comparisons_figure(compared)


def _scores_figure(scores: Scores, before: Scores | None) -> Figure:
    from unimoe.analysis.figures import scores_figure

    return scores_figure(_estimates(scores, before), _queries(scores), against_first_stage=before is not None)


@singledispatch
def view(result: Any) -> View:
    """Return what there is to see of a result."""
    raise TypeError(f"nothing shows a {type(result).__name__}")


@view.register
def _(judged: Judgments) -> View:
    def write(folder: Path) -> None:
        gates_table(judged).write(folder)
        write_json(folder / "gates.json", gates_as_json(None, judged, judged))

    lines = [f"{item.name}: {item.verdict}. {wording.headline(item)}" for item in judged]
    figure = partial(_judgments_figure, judged)
    return View(lines or ["no gate was judged"], partial(gates_table, judged), figure, write)


@view.register
def _(judgment: Judgment) -> View:
    return view(Judgments([judgment]))


@view.register
def _(rows: TIRs) -> View:
    table = replace(gates_table(rows.judgments), name="tir", title="TIR")

    def write(folder: Path) -> None:
        table.write(folder)
        write_json(folder / "tir.json", to_jsonable_python([row._asdict() for row in rows], inf_nan_mode="null"))

    lines = []
    for row in rows:
        ends = ", ".join(signed(100 * end, keep_side=True) for end in (row.low, row.high) if end is not None)
        value = "not computable" if math.isnan(row.value) else f"{signed(100 * row.value)} % [{ends or 'no interval'}]"
        where = f"{row.task}/{row.dataset or 'all datasets'}, {metric_name(row.metric)}"
        label = f"ADVISORY {row.label} ({row.advisory})" if row.advisory else row.label
        lines.append(f"{where}: TIR of {row.joint} against {row.specialist} {value}, {label}")
    figure = partial(_judgments_figure, rows.judgments)
    return View(lines or ["no pair of arms has a TIR"], lambda: table, figure, write)


@view.register
def _(compared: SystemComparison) -> View:
    from unimoe.analysis.report.systems import systems_headlines  # with the report's templates

    said = [f"{compared.summary}.", *systems_headlines(compared.results, compared.comparisons)]
    said += [*caveat_notes(compared.results), *(f"Warning: {warning}" for warning in compared.warnings)]
    return View(said, compared.table, partial(_comparisons_figure, compared), compared.save)


@view.register
def _(scores: Scores) -> View:
    return scores_view(scores, f"{_queries(scores)} queries", {})


def scores_view(
    scores: Scores, what: str, facts: Mapping[str, Any], run: Run | None = None, before: Scores | None = None
) -> View:
    """Return what there is to see of the scores of a run, and of a first stage that came ``before`` it.

    ``facts`` are what else ``scores.json`` says.
    """
    first = {} if before is None else before.aggregate
    means = ", ".join(
        f"{metric_name(name)} {mean:.4f}{f' (first stage {first[name]:.4f})' if name in first else ''}"
        for name, mean in scores.aggregate.items()
    )
    notes = [f"{check.weight.capitalize()}: {check.line}" for check in scores.checks]

    def write(folder: Path) -> None:
        names = ("aggregate", "per_query", "unjudged_queries", "checks")
        held = {name: getattr(scores, name) for name in names} | ({"first_stage": before.aggregate} if before else {})
        write_json(folder / "scores.json", to_jsonable_python({**facts, **held}, inf_nan_mode="null"))
        with (folder / "scores.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["query", *scores.per_query])
            queries = next(iter(scores.per_query.values()), {})
            writer.writerows([query, *(of[query] for of in scores.per_query.values())] for query in queries)
        if run is not None:
            write_run(folder / "run.trec", run, "unimoe")

    return View(
        [f"{what}: {means}", *notes],
        partial(_scores_table, scores, what, notes, before),
        partial(_scores_figure, scores, before),
        write,
    )


def _queries(scores: Scores) -> int:
    return len(next(iter(scores.per_query.values()), {}))


def _estimates(scores: Scores, before: Scores | None) -> dict[str, Estimate]:
    """Return the mean of each measure, or its gain over the first stage, with its interval; nothing of counts."""
    found = {}
    for name, values in scores.per_query.items():
        if values and math.isclose(scores.aggregate[name], fmean(values.values()), abs_tol=1e-9):
            other = before.per_query[name] if before else dict.fromkeys(values, 0.0)
            found[name] = estimate_of_mean(np.array([[values[query] - other[query] for query in values]]))
    return found


def _scores_table(scores: Scores, what: str, notes: Sequence[str], before: Scores | None) -> Table:
    found = _estimates(scores, before)
    rows = []
    for name, mean in scores.aggregate.items():
        low, high = (found[name].interval if name in found else None) or (None, None)
        cells = [Cell(metric_name(name), full=name), Cell.number(mean, ".4f")]
        if before:
            cells.insert(1, Cell.number(before.aggregate[name], ".4f"))
            cells.append(Cell.signed(mean - before.aggregate[name], 4))
        ends = [Cell.signed(end, 4, keep_side=True) if before else Cell.number(end, ".4f") for end in (low, high)]
        rows.append((*cells, *ends))
    of = "difference" if before else "mean"
    heads = ("Measure", *(("First stage", "Run", "Difference") if before else ("Mean",)), "Low", "High")
    caption = f"{what}: means over queries. Low and High: {100 * LEVEL:g} % interval of the {of} for other queries"
    return Table("scores", caption, heads, (RowGroup("", tuple(rows)),) if rows else (), tuple(notes), title="Scores")
