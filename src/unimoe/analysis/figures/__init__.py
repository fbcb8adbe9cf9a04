"""Every figure of the analysis: drawn one at a time, saved as PDF and PNG, or set into a page as SVG.

for drawing in all_figures(analysis):
    save(drawing.figure, folder / drawing.name)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from unimoe.analysis.across import Across
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.crossed_bootstrap import crossed_bootstrap_tir, percentile_interval
from unimoe.analysis.figures.conflict_curves import conflict_rate_figure, norm_ratio_figure
from unimoe.analysis.figures.conflict_log import read_conflict_logs
from unimoe.analysis.figures.conflicts import conflict_figure
from unimoe.analysis.figures.differences import difference_figure
from unimoe.analysis.figures.files import save, to_svg
from unimoe.analysis.figures.forest import Row, forest_figure, tir_row
from unimoe.analysis.figures.losses import loss_figure
from unimoe.analysis.figures.power_curve import power_curves, power_figure
from unimoe.analysis.figures.scores import overview_figure, score_figure, score_panels
from unimoe.analysis.figures.style import STYLE, Look, looks
from unimoe.analysis.interference import Interference
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.summaries import caveat_notes
from unimoe.results import TASKS, Task

__all__ = ["Drawing", "all_figures", "save", "save_all", "to_svg"]

RESAMPLES = 1_000
"""Of the bootstrap in the forest plot, which no verdict rests on."""

_INTERVAL = "95 % interval over seeds and queries (over queries alone where there is one run)"
_FOREST = (
    "TIR against its two cutoffs. Square: one dataset; diamond: all datasets of a pair; thick line: 95 % interval over "
    "seeds and queries, an arrow where it goes on; thin grey line: the crossed bootstrap's, too short with few seeds. "
    "The label with confidence stands at the right."
)
_SCORES = (
    "Scores on {task}. Bar and number: mean over seeds; dots: seeds; line: "
    f"{_INTERVAL}. Arms answer the same queries, so that lines may overlap where arms differ: the forest plot compares."
)
_OVERVIEW = f"Scores on {{task}}, a row per dataset. Point: mean over seeds; line: {_INTERVAL}."
_DIFFERENCES = (
    "What each query of {task} gains (above 0) or loses (below) under the joint arm: joint minus specialist, averaged "
    "over seeds, sorted. Where there are many queries, neighbours are averaged; the area is the mean difference."
)
_POWER = (
    "How much more data would help on {task}: half of the 95 % interval of TIR to expect at a number of queries, for "
    "the seeds there are and for 5 and 10. Where a curve is below the grey line, the interval no longer reaches the "
    "cutoff nearest to the present estimate. A plan from few seeds, not a promise."
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
    """A figure with what a reader needs beside it.

    Attributes:
        name: file stem, unique among the figures of an analysis.
        caption: what is shown and how to read it.
        figure: drawn, to be saved.
    """

    name: str
    caption: str
    figure: Figure


def all_figures(analysis: Analysis) -> Iterator[Drawing]:
    """Draw what the results allow, one figure at a time, so that only one is held in memory.

    Raises:
        DataError: a damaged log of gradient conflicts.
    """
    for draw in _planned(analysis):
        with mpl.rc_context(STYLE):
            drawing = draw()
        yield drawing


def save_all(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Draw every figure into a folder as PDF and PNG, and return the PNG files."""
    return tuple(save(drawing.figure, folder / drawing.name) for drawing in all_figures(analysis))


def _planned(analysis: Analysis) -> Iterator[Callable[[], Drawing]]:
    results, measured = analysis.results, analysis.metrics.measured
    conflicts = read_conflict_logs(results.output_dir)
    seen = looks({*results, *(arm for arm, _ in [*results.logs, *conflicts])})
    notes = caveat_notes(results)
    if measured:
        yield partial(_forest, results, measured, analysis.across, seen)
    for task in TASKS:
        yield from _of_task(results, task, [item for item in measured if item.pair.task == task], seen)
    if any(results.logs.values()):
        yield lambda: Drawing("loss-curves", _LOSSES, loss_figure(results.logs, seen, notes))
    if conflicts:
        yield lambda: Drawing("gradient-conflicts", _CONFLICTS, conflict_figure(conflicts, notes))
        yield lambda: Drawing("conflict-rate", _CONFLICT_RATE, conflict_rate_figure(conflicts, seen, notes))
        yield lambda: Drawing("norm-ratio", _NORM_RATIO, norm_ratio_figure(conflicts, seen, notes))


def _of_task(
    results: Results, task: Task, items: Sequence[Interference], seen: Mapping[str, Look]
) -> Iterator[Callable[[], Drawing]]:
    notes = caveat_notes(results)
    shown = score_panels(results, task)
    if shown:
        yield lambda: Drawing(f"scores-{task}", _SCORES.format(task=task), score_figure(shown, seen, notes))
    if len(shown) > 1:
        yield lambda: Drawing(f"overview-{task}", _OVERVIEW.format(task=task), overview_figure(shown, seen, notes))
    if items:
        yield lambda: Drawing(
            f"differences-{task}", _DIFFERENCES.format(task=task), difference_figure(results, items, seen, notes)
        )
    if curves := power_curves(items):
        yield lambda: Drawing(f"power-{task}", _POWER.format(task=task), power_figure(curves, seen, notes))


def _forest(
    results: Results, measured: Sequence[Interference], across: Sequence[Across], seen: Mapping[str, Look]
) -> Drawing:
    groups: dict[Pair, list[Row]] = {}
    for item in measured:
        row = tir_row(item.dataset, item, check=_bootstrap_interval(results, item))
        groups.setdefault(item.pair, []).append(row)
    for suite in across:
        metric = f" ({suite.metric})" if sum(other.pair == suite.pair for other in across) > 1 else ""
        groups[suite.pair] += [
            tir_row(f"mean of TIRs{metric}", suite.mean_of_tirs, several=True),
            tir_row(f"TIR of means{metric}", suite.tir_of_means, several=True),
        ]
    return Drawing("tir-forest", _FOREST, forest_figure(groups, seen, caveat_notes(results)))


def _bootstrap_interval(results: Results, item: Interference) -> tuple[float, float] | None:
    """In percent; None with one seed, where the interval over seeds is missing too."""
    if item.crossed is None:
        return None
    key = f"{item.pair.task}/{item.dataset}"
    specialist, joint = (results.scores(arm, key, item.seeds) for arm in (item.pair.specialist, item.pair.joint))
    low, high = percentile_interval(crossed_bootstrap_tir(specialist, joint, RESAMPLES, seed=0))
    return 100.0 * low, 100.0 * high
