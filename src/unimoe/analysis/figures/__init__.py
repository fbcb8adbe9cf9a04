"""Every figure of the analysis: drawn one at a time, saved as PDF and PNG, or set into a page as SVG.

for drawing in all_figures(analysis):
    save(drawing.figure, folder / drawing.name)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unimoe.core.errors import UsageError

try:
    import matplotlib  # noqa: F401 - it reads its settings
except ValueError as error:
    raise UsageError(
        f"matplotlib, which draws the figures, refuses its settings: {error}; correct MPLBACKEND or matplotlibrc, or "
        "remove it"
    ) from None
from matplotlib.figure import Figure

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.figures.gates import (
    CutoffGroup,
    ForestRow,
    comparison_groups,
    forest_figure,
    gate_groups,
    power_figure,
    query_groups,
)
from unimoe.analysis.figures.scores import critical_difference_figure, difference_figure, score_figure
from unimoe.analysis.figures.style import annotate, looks, save, to_svg
from unimoe.analysis.figures.training import conflict_figure, loss_figure
from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.saved_comparison import NAMES as CORRECTIONS
from unimoe.analysis.standings import corrected_together, standings
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.tables.cells import caveat_notes
from unimoe.core.grouping import gathered
from unimoe.results import TASKS
from unimoe.results.logs import read_conflict_logs

__all__ = ["Drawing", "all_figures", "save", "save_all", "to_svg"]

_LEADING = ("forest", "comparisons")  # differences with their intervals
_MOST_COMPARISONS = 60  # rows of a figure of comparisons: more are for the table
_MOST_BY_GROUP = 15  # pairs of systems with a row for each group of queries
_OF_TIR = "TIR: share of the specialist's score that the joint arm loses (%); below 0 it gains"
_OF_DIFFERENCES = "system minus baseline, points (score x 100)"
_ROWS = (
    "Square: one dataset; diamond: all datasets of a gate; line: 95 % interval, with an arrow where it goes on. Tick: "
    "the bound that the label rests on, end of a one-sided interval at the gate's confidence; at the right in words."
)
_CAPTIONS = {
    "tir-forest": f"What the joint arm loses, against the cutoffs of each gate. {_ROWS}",
    "difference-forest": f"System minus baseline, against the margins of each gate. {_ROWS}",
    "scores": "Scores on {task}, a row for each dataset with its number of queries. Point: mean over seeds; ticks: "
    "seeds; line: 95 % interval for other seeds and queries (over queries alone where there is one run). Arms answer "
    "the same queries, so that lines may overlap where arms differ: compare arms by their differences.",
    "differences": "What each query of {task} gains (above 0) or loses (below), sorted, each arm averaged over its own "
    "seeds. Where there are many queries, neighbours are averaged; the area is the mean difference.",
    "power": "How much more data would help on {task}: half of the 95 % interval to expect, for the seeds there are, "
    "5 and 10. Where a curve is below the grey line, the interval no longer reaches the cutoff of its gate nearest to "
    "the present estimate. A plan from estimated variances, not a promise.",
    "comparisons": "Each two systems compared on the same queries. Line: 95 % interval of their difference, for other "
    "queries, and for other seeds of systems with several, each by itself. p: corrected for many tests, so that "
    "a line may miss 0 without a star; *: significant.",
    "by-group": "Groups of queries (number) with 95 % intervals; p: of a group by itself, by Holm over groups. Whether "
    "the {task} varies between groups is the test in the heading, and not which of these p are below .05.",
    "critical-difference": "Systems by their mean scores; a bar joins systems (points) of which no two differ "
    "significantly by simultaneous 95 % intervals of all differences (max-t on mean scores, not Nemenyi's test on "
    "mean ranks). They hold for other queries, and for other seeds of systems with several.",
    "loss-curves": "Training losses, running mean over a twentieth of the steps. Thick: mean over seeds; thin: seeds.",
    "gradient-conflicts": "Cosine between the gradients of ranking and embedding, mean over seeds; dark is conflict. "
    "Noise draws the raw cosine to 0; the corrected one is divided by the cosines of each task with itself.",
}


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn to be saved, with what a reader needs to know of it."""

    name: str  # file stem, unique among the figures of an analysis
    caption: str  # what is shown and how to read it
    figure: Figure
    leads: bool = False  # whether it shows what the analysis found, and so comes before everything else


def save_all(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Draw every figure into a folder as PDF and PNG, and return the PNG files."""
    return tuple(save(drawing.figure, folder / drawing.name) for drawing in all_figures(analysis))


def all_figures(analysis: Analysis) -> Iterator[Drawing]:
    """Draw what the results allow, one figure at a time, so that only one is held in memory.

    Raises:
        DataError: a damaged log of gradient conflicts.
    """
    notes = caveat_notes(analysis.results)
    for kind, task, figure in _drawn(analysis):
        annotate(figure, notes)
        caption = _CAPTIONS[kind].format(task=task)
        yield Drawing(f"{kind}-{task}" if task else kind, caption, figure, leads=kind.endswith(_LEADING))


def judgments_figure(judgments: Sequence[Judgment]) -> Figure:
    """Draw what gates found against their cutoffs; where there are both, TIR alone, and a line names the others."""
    if not judgments:
        raise UsageError("nothing to draw: no gate was judged")
    interference = [item for item in judgments if isinstance(item.gate, InterferenceGate)]
    drawn = interference or list(judgments)
    left_out = ", ".join(item.name for item in judgments if item not in drawn)
    groups = gate_groups(drawn, looks({arm for item in drawn for arm in item.gate.sides}))
    figure = forest_figure(groups, _OF_TIR if interference else _OF_DIFFERENCES)
    caveats = dict.fromkeys(note for item in drawn for note in caveat_notes(item.results))
    annotate(figure, [*([f"In points, and not drawn here: {left_out}."] if left_out else []), *caveats])
    return figure


def comparisons_figure(analysis: Analysis) -> Figure:
    """Draw the differences of systems on main metrics with their intervals; of very many the averages, or the first."""
    every = analysis.comparisons
    drawn = _averages_of_many(every)[:_MOST_COMPARISONS]
    figure = _comparisons_forest(analysis, drawn)
    cut = [f"{len(drawn):,} of {len(every):,} comparisons; tests() has all."] * (len(drawn) < len(every))
    annotate(figure, [*cut, *caveat_notes(analysis.results)])
    return figure


def scores_figure(found: Mapping[str, Estimate], queries: int, *, against_first_stage: bool) -> Figure:
    """Draw the mean of each measure of one run with its interval, or what the run gains over its first stage."""
    if not found:
        raise UsageError("nothing to draw: no measure is a mean over queries")
    look, rows = looks(["run"])["run"], []
    for name, one in found.items():
        value, *ends = (
            signed(100.0 * end) if against_first_stage else f"{100.0 * end:.2f}"
            for end in (one.value, *(one.interval or ()))
        )
        rows.append(ForestRow(metric_name(name), one, f"{value} [{', '.join(ends) or 'no interval'}]", "", look))
    what = "run minus first stage" if against_first_stage else "mean"
    heading = f"{what} over {queries:,} queries, with 95 % interval for other queries"
    cutoffs = (0.0,) if against_first_stage else ()
    return forest_figure([CutoffGroup(heading, cutoffs, (), tuple(rows))], "points (score x 100)")


def _averages_of_many(every: Sequence[Comparison]) -> Sequence[Comparison]:
    """Return all comparisons or, of more than a figure holds, those of averages where there are some."""
    averages = [c for c in every if c.parts]
    return averages if averages and len(every) > _MOST_COMPARISONS else every


def _comparisons_forest(analysis: Analysis, comparisons: Sequence[Comparison]) -> Figure:
    name = CORRECTIONS[analysis.correction]
    p = f"p is, by {name}" if name else "nor is p"
    label = f"difference, points (score x 100); intervals of 95 % are not corrected for this number, {p}"
    return forest_figure(comparison_groups(comparisons, looks(analysis.results)), label)


def _drawn(analysis: Analysis) -> Iterator[tuple[str, str, Figure]]:
    """Yield the kind of each figure, the task that it is about, if one, and the figure: differences before scores."""
    results, judgments = analysis.results, analysis.judgments
    conflicts = read_conflict_logs(results.output_dir)
    seen = looks({*results, *(arm for arm, _ in [*results.logs, *conflicts])})
    others = [item for item in judgments if not isinstance(item.gate, InterferenceGate)]
    if analysis.interference:  # a forest in percent, and one in points: they have no axis in common
        yield "tir-forest", "", forest_figure(gate_groups(analysis.interference, seen), _OF_TIR)
    if others:
        yield "difference-forest", "", forest_figure(gate_groups(others, seen), _OF_DIFFERENCES)
    shown = _averages_of_many(analysis.comparisons)
    if not judgments and 0 < len(shown) <= _MOST_COMPARISONS:
        yield "comparisons", "", _comparisons_forest(analysis, shown)
    for what, label in (("TIR", _OF_TIR), ("difference", _OF_DIFFERENCES)):
        if found := [one for one in analysis.by_group if one.ratio == (what == "TIR")][:_MOST_BY_GROUP]:
            yield "by-group", what, forest_figure(query_groups(found, seen), label)
    if not judgments and (places := standings(analysis.comparisons)):
        shown = [c for c in analysis.comparisons if (c.place, c.metric) in places]
        shown = corrected_together(shown, {}, simultaneous=True)
        averaged = {key for place, _ in places if len(place) > 1 for key in place}
        of_place = gathered((c.place, c) for c in shown if c.parts or averaged.isdisjoint(c.place))
        yield "critical-difference", "", critical_difference_figure(list(of_place.values()))
    for task in TASKS:
        if items := [item for item in judgments if item.gate.task == task]:
            yield "differences", task, difference_figure(results, items, seen)
        if figure := power_figure(items, seen):
            yield "power", task, figure
    for task in TASKS:  # last, since marginal intervals invite comparisons that differences answer
        if firsts := [first for first in results.firsts if first.task == task]:
            yield "scores", task, score_figure(results, firsts, seen)
    if any(results.logs.values()):
        yield "loss-curves", "", loss_figure(results.logs, seen)
    if conflicts:
        yield "gradient-conflicts", "", conflict_figure(conflicts)
