"""How every figure looks: fonts, the look of an arm, text that fits, panels on a page.

Colours are Okabe and Ito's, told apart by colour-blind readers; hatches, markers and dashes tell the arms apart in
grey. Figures are 3.3 inches wide where they fit one column of a paper and 6.9 where they need two, with text of 7
points. Sizes are set in inches: automatic layout would draw every figure several times.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from unimoe.analysis.arms import arm_order
from unimoe.analysis.tables.cells import short_names

ONE_COLUMN, TWO_COLUMNS = 3.3, 6.9
FONT = "DejaVu Sans"
FONT_SIZE = 7.0
LINE = 0.135
"""Height of a line of text, in inches."""
NEUTRAL = "#808080"
"""Seen on white and on black."""

STYLE: dict[Any, Any] = {
    "font.family": FONT,  # one alone: the PDF backend embeds every font of a list, 0.2 s each
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.titlepad": 3.0,
    "axes.titley": 1.0,  # fixed: finding out what is in the way takes as long as drawing
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.6,
    "figure.labelsize": FONT_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.borderpad": 0.0,
    "legend.borderaxespad": 0.0,
    "pdf.fonttype": 42,  # editable text, which publishers ask for
    "axes.facecolor": "none",
    "ps.fonttype": 42,  # else the PDF backend embeds the font again for glyphs from 256 on, such as the minus sign
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may hold dollar signs
}

_SHORTEST = 8
"""Characters that are left of a name."""

Dashes = Literal["-", "--", "-.", ":"]
_Parts = tuple[str, str, str, Dashes]

_ROLES: dict[str, _Parts] = {
    "bm25": ("#7F7F7F", "xxxx", "s", "-"),
    "zero_shot": ("#C8C8C8", "", "D", ":"),
    "rank_only": ("#0072B2", "", "o", "-"),
    "emb_only": ("#009E73", "||||", "^", "-."),
    "joint": ("#D55E00", "////", "v", "--"),
}
_OTHERS: tuple[_Parts, ...] = (
    ("#CC79A7", "\\\\\\\\", "P", "-"),
    ("#E69F00", "oooo", "X", "--"),
    ("#56B4E9", "----", "<", "-."),
    ("#F0E442", "++++", ">", ":"),
)


@dataclass(frozen=True)
class Look:
    """How an arm is drawn, in every figure.

    Attributes:
        colour: of fills and lines.
        hatch: of bars, matplotlib's code.
        marker: of points.
        dashes: of lines.
    """

    colour: tuple[float, float, float]
    hatch: str
    marker: str
    dashes: Dashes


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """Return the look of each arm by its task word; further arms of the same word are lighter."""
    found: dict[str, Look] = {}
    used: dict[str, int] = {}
    others = 0
    for arm in sorted(arms, key=arm_order):
        word = next((word for word in _ROLES if arm == word or arm.startswith(f"{word}_")), None)
        if word is None:
            parts = _OTHERS[others % len(_OTHERS)]
            others += 1
        else:
            parts = _ROLES[word]
        shade = used.get(word or arm, 0)
        used[word or arm] = shade + 1
        light = 1.0 - 0.7**shade
        red, green, blue = (channel + (1.0 - channel) * light for channel in to_rgb(parts[0]))
        found[arm] = Look((red, green, blue), *parts[1:])
    return found


def text_width(text: str) -> float:
    """Return the width of a line of text at the figures' font size, in inches."""
    font = get_font(findfont(FontProperties(family=FONT)))
    font.set_size(FONT_SIZE, 72.0)  # the object is matplotlib's own, which sets other sizes
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64.0 / 72.0


def fit(text: str, width: float) -> str:
    """Return text on one line, cut in the middle where it is wider than ``width`` inches."""
    text = " ".join(text.split())
    kept = text
    for letters in range(len(text) - 1, -1, -1):
        if text_width(kept) <= width:
            break
        kept = f"{text[: (letters + 1) // 2]}…{text[len(text) - letters // 2 :]}"
    return kept


def fit_all(names: Iterable[str], width: float) -> dict[str, str]:
    """Return each name on one line of about ``width`` inches, and different names never as one."""
    names = list(dict.fromkeys(names))
    longest = max(map(len, names), default=0)
    for letters in range(longest, _SHORTEST, -1):
        short = short_names(names, letters)
        if all(text_width(cut) <= width for cut in short.values()):
            return short
    return short_names(names, _SHORTEST)


def panels(
    n: int,
    *,
    height: float | None = None,
    left: float,
    xlabel: str,
    ylabel: str = "",
    notes: Sequence[str] = (),
    legend: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``n`` equal panels, up to three in a row, its legend above and its notes below them.

    Panels share their scales: only the outer ones have tick labels.

    Args:
        n: number of panels; one alone takes one column of a paper, more take two.
        height: of a panel, in inches, without title and tick labels; left out, low where there are many rows.
        left: room for the tick labels of the first panel in a row, in inches.
        xlabel: of all panels.
        ylabel: of all panels.
        notes: sentences below the panels.
        legend: labelled handles.
    """
    columns = min(n, 3)
    rows = ceil(n / columns)
    width = ONE_COLUMN if n == 1 else TWO_COLUMNS
    height = height or (0.95 if n > 3 else 1.4)
    gap, between, below = 0.27, 0.14, 0.4
    content = rows * height + (rows - 1) * gap
    figure, top = sheet(width, content, above=0.2, below=below, legend=legend, notes=notes)
    left += 1.2 * LINE if ylabel else 0.0
    across = (width - left - 0.2 - (columns - 1) * between) / columns
    axes = []
    for i in range(n):
        row, column = divmod(i, columns)
        floor = top - height - row * (height + gap)
        axes.append(add_axes(figure, left + column * (across + between), floor, across, height))
        axes[-1].tick_params(labelleft=column == 0, labelbottom=i + columns >= n)
        for axis in (axes[-1].xaxis, axes[-1].yaxis):
            axis.set_label_coords(0.0, 0.0)  # there is none, yet its place would be worked out
    figure.supxlabel(xlabel, y=(top - content - below + 0.05) / figure.get_figheight(), va="bottom")
    figure.supylabel(ylabel, x=0.05 / width, ha="left")
    return figure, axes


def page(width: float, height: float, *, left: float, right: float, top: float, bottom: float) -> tuple[Figure, Axes]:
    """Make a figure with one pair of axes, margins in inches."""
    figure = Figure(figsize=(width, height))
    return figure, add_axes(figure, left, bottom, width - left - right, height - top - bottom)


def panel_width(axes: Axes) -> float:
    """Return the width of the axes, in inches."""
    figure = axes.get_figure(root=True)
    return float(axes.get_position().width * figure.get_figwidth()) if figure else 0.0


def sheet(
    width: float,
    height: float,
    *,
    above: float,
    below: float,
    legend: Sequence[Artist] = (),
    notes: Sequence[str] = (),
) -> tuple[Figure, float]:
    """Make a figure with a legend along its upper edge, in as many columns as fit, and notes along its lower edge.

    Notes travel with the figure wherever it is pasted.

    Args:
        width: of the figure, in inches, as all lengths.
        height: of what will be drawn.
        above: between the legend and that.
        below: between that and the notes.
        legend: labelled handles.
        notes: sentences.

    Returns:
        The figure, and how far above its lower edge the drawing begins.
    """
    columns = _legend_columns(legend, width)
    head = 0.95 * LINE * ceil(len(legend) / columns) + 0.05 if legend else 0.0
    lines = [line for note in notes for line in textwrap.wrap(note, _letters(note, width - 0.2))]
    foot = LINE * len(lines) + (0.05 if lines else 0.0)
    total = head + above + height + below + foot
    figure = Figure(figsize=(width, total))
    if legend:
        figure.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(0.05 / width, 1.0 - 0.04 / total), ncols=columns,
            columnspacing=1.0, labelspacing=0.25, handlelength=2.4, handletextpad=0.5,
        )  # fmt: skip
    if lines:
        figure.text(0.05 / width, 0.04 / total, "\n".join(lines), va="bottom", linespacing=1.2)
    return figure, total - head - above


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a place in inches."""
    across, along = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / along, width / across, height / along))


def _letters(text: str, width: float) -> int:
    """Return how many letters of a text fit into ``width`` inches, on average."""
    return max(1, int(0.95 * width * len(text) / max(text_width(text), 1e-9)))


def _legend_columns(handles: Sequence[Artist], width: float) -> int:
    widest = max((text_width(str(handle.get_label())) for handle in handles), default=0.0)
    return max(1, min(len(handles), int((width - 0.1) / (widest + 0.4))))
