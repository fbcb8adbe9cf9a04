"""Every figure of the analysis: drawn one at a time, saved as PDF and PNG, or set into a page as SVG.

for drawing in all_figures(analysis):
    save(drawing.figure, folder / drawing.name)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    import matplotlib as mpl
except ValueError as error:
    from unimoe.core.errors import UsageError

    raise UsageError(
        f"matplotlib, which draws the figures, refuses its settings: {error}; correct MPLBACKEND or matplotlibrc, or "
        "remove it"
    ) from None
from matplotlib.figure import Figure

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.figures.files import save, to_svg
from unimoe.analysis.figures.forest import comparison_groups, forest_figure, gate_groups
from unimoe.analysis.figures.gates import difference_figure, power_curves, power_figure
from unimoe.analysis.figures.scores import overview_figure, score_figure, score_panels
from unimoe.analysis.figures.style import STYLE, Look, looks
from unimoe.analysis.figures.training import conflict_figure, conflict_rate_figure, loss_figure, norm_ratio_figure
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.tables.cells import caveat_notes
from unimoe.results import TASKS, Task
from unimoe.results.logs import read_conflict_logs

__all__ = ["Drawing", "all_figures", "save", "save_all", "to_svg"]

_MOST_COMPARISONS = 60  # rows of a figure of comparisons: more are for the table

_INTERVAL = "95 % interval for other seeds and queries (over queries alone where there is one run)"
_ROWS = (
    "Square: one dataset; diamond: all datasets of a gate; line: 95 % interval, with an arrow where it goes on beyond "
    "the figure. Tick: the bound that the label rests on, the end of a one-sided interval at the gate's confidence; at "
    "the right the same in words."
)
_FOREST = f"What the joint arm loses, against the cutoffs of each gate. {_ROWS}"
_DIFFERENCE_FOREST = f"System minus baseline, against the margins of each gate. {_ROWS}"
_COMPARISONS = (
    "Each two systems compared on the same queries. Line: 95 % interval of their difference, for other queries, and "
    "for other seeds of systems with several, each by itself. p: corrected by Holm for all rows, so that a line "
    "may miss 0 without a star; *: significant."
)
_SCORES = (
    f"Scores on {{task}}. Bar and number: mean over seeds; dots: seeds; line: {_INTERVAL}. Arms answer the same "
    "queries, so that lines may overlap where arms differ: compare arms by their differences."
)
_OVERVIEW = f"Scores on {{task}}, a row for each dataset. Point: mean over seeds; line: {_INTERVAL}."
_DIFFERENCES = (
    "What each query of {task} gains (above 0) or loses (below): joint minus specialist, or system minus baseline, "
    "each averaged over its own seeds, sorted. Where there are many queries, neighbours are averaged; the area is the "
    "mean difference."
)
_POWER = (
    "How much more data would help on {task}: half of the 95 % interval to expect at a number of queries, for the "
    "seeds there are and for 5 and 10. Where a curve is below the grey line, the interval no longer reaches the cutoff "
    "of its gate nearest to the present estimate. A plan from estimated variances, not a promise."
)
_LOSSES = "Training losses. Thick: mean over seeds; thin: seeds; running mean over a twentieth of the steps."
_CONFLICTS = (
    "Cosine between the gradients of ranking and embedding, mean over seeds, by layer and step; dark is conflict. "
    "Noise draws the raw cosine to 0; the corrected one is divided by the cosines of each task with itself."
)
_CONFLICT_RATE = (
    "Share of the layers in which the gradients of ranking and embedding conflict (cosine below 0), by step. Thick: "
    "mean over seeds; thin: seeds. Two unrelated gradients conflict in half of the layers. The lower panel counts only "
    "the layers in which each task agrees with itself, where a sign means something."
)
_NORM_RATIO = (
    "Length of the gradient of ranking over that of embedding, all layers together, by step. Thick: geometric mean "
    "over seeds; thin: seeds. Far from 1, the longer one decides where the step goes, whatever the angle."
)


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn to be saved, with what a reader needs beside it."""

    name: str  # file stem, unique among the figures of an analysis
    caption: str  # what is shown and how to read it
    figure: Figure
    leads: bool = False  # whether it shows what the analysis found, and so comes before everything else


def all_figures(analysis: Analysis) -> Iterator[Drawing]:
    """Draw what the results allow, one figure at a time, so that only one is held in memory.

    Raises:
        DataError: a damaged log of gradient conflicts.
    """
    drawings = _drawings(analysis)
    while True:
        with mpl.rc_context(STYLE):  # not held over a yield, where it would be the caller's style too
            drawing = next(drawings, None)
        if drawing is None:
            return
        yield drawing


def save_all(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Draw every figure into a folder as PDF and PNG, and return the PNG files."""
    return tuple(save(drawing.figure, folder / drawing.name) for drawing in all_figures(analysis))


def _drawings(analysis: Analysis) -> Iterator[Drawing]:
    results, notes = analysis.results, caveat_notes(analysis.results)
    conflicts = read_conflict_logs(results.output_dir)
    seen = looks({*results, *(arm for arm, _ in [*results.logs, *conflicts])})
    others = [item for item in analysis.judgments if not isinstance(item.gate, InterferenceGate)]
    if analysis.interference:  # a forest in percent, and one in points: they have no axis in common
        label = "TIR: share of the specialist's score that the joint arm loses (%); below 0 it gains"
        figure = forest_figure(gate_groups(analysis.interference, seen), label, notes)
        yield Drawing("tir-forest", _FOREST, figure, leads=True)
    if others:
        figure = forest_figure(gate_groups(others, seen), "system minus baseline, points (score x 100)", notes)
        yield Drawing("difference-forest", _DIFFERENCE_FOREST, figure, leads=True)
    for task in TASKS:
        yield from _of_task(analysis, task, seen, notes)
    compared = analysis.comparisons if not analysis.judgments else ()
    if 0 < len(compared) <= _MOST_COMPARISONS:
        figure = forest_figure(comparison_groups(compared, seen), "difference, points (score x 100)", notes)
        yield Drawing("comparisons", _COMPARISONS, figure)
    if any(results.logs.values()):
        yield Drawing("loss-curves", _LOSSES, loss_figure(results.logs, seen, notes))
    if conflicts:
        yield Drawing("gradient-conflicts", _CONFLICTS, conflict_figure(conflicts, notes))
        yield Drawing("conflict-rate", _CONFLICT_RATE, conflict_rate_figure(conflicts, seen, notes))
        yield Drawing("norm-ratio", _NORM_RATIO, norm_ratio_figure(conflicts, seen, notes))


def _of_task(analysis: Analysis, task: Task, seen: Mapping[str, Look], notes: Sequence[str]) -> Iterator[Drawing]:
    items = [item for item in analysis.judgments if item.gate.task == task]
    shown = score_panels(analysis.results, task)
    if shown:
        yield Drawing(f"scores-{task}", _SCORES.format(task=task), score_figure(shown, seen, notes))
    if len(shown) > 1:
        yield Drawing(f"overview-{task}", _OVERVIEW.format(task=task), overview_figure(shown, seen, notes))
    if items:
        figure = difference_figure(analysis.results, items, seen, notes)
        yield Drawing(f"differences-{task}", _DIFFERENCES.format(task=task), figure)
    if curves := power_curves(items):
        yield Drawing(f"power-{task}", _POWER.format(task=task), power_figure(curves, seen, notes))
