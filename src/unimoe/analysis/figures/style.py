"""How every figure looks: fonts, the look of an arm, text that fits, panels on a page.

Colours are Okabe and Ito's, told apart by colour-blind readers; hatches, markers and dashes tell the arms apart in
grey. Figures are 3.3 inches wide where they fit one column of a paper and 6.9 where they need two, with text of 7
points. Sizes are set in inches: automatic layout would draw every figure several times.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from unimoe.analysis.summaries import arm_order

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
    """The look of each arm by its task word; further arms of the same word are lighter."""
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
    """Width of a line of text at the figures' font size, in inches."""
    font = get_font(findfont(FontProperties(family=FONT)))
    font.set_size(FONT_SIZE, 72.0)  # the object is matplotlib's own, which sets other sizes
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64.0 / 72.0


def fit(text: str, width: float) -> str:
    """The text on one line, its end cut where it is wider than ``width`` inches."""
    text = " ".join(text.split())
    if text_width(text) <= width:
        return text
    while text and text_width(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


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
    """A figure of ``n`` equal panels, up to three in a row, its legend above and its notes below them.

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
    top = legend_height(legend, width) + 0.2
    height = height or (0.95 if n > 3 else 1.4)
    foot = notes_height(notes, width)
    gap, between = 0.27, 0.14
    total = top + rows * height + (rows - 1) * gap + 0.4 + foot
    figure = Figure(figsize=(width, total))
    left += 1.2 * LINE if ylabel else 0.0
    across = (width - left - 0.2 - (columns - 1) * between) / columns
    axes = []
    for i in range(n):
        row, column = divmod(i, columns)
        x, y = left + column * (across + between), total - top - height - row * (height + gap)
        axes.append(figure.add_axes((x / width, y / total, across / width, height / total)))
        axes[-1].tick_params(labelleft=column == 0, labelbottom=i + columns >= n)
        for axis in (axes[-1].xaxis, axes[-1].yaxis):
            axis.set_label_coords(0.0, 0.0)  # there is none, yet its place would be worked out
    figure.supxlabel(xlabel, y=(foot + 0.05) / total, va="bottom")
    figure.supylabel(ylabel, x=0.05 / width, ha="left")
    add_legend(figure, legend)
    add_notes(figure, notes)
    return figure, axes


def page(width: float, height: float, *, left: float, right: float, top: float, bottom: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, margins in inches."""
    figure = Figure(figsize=(width, height))
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    return figure, figure.add_axes(box)


def panel_width(axes: Axes) -> float:
    """Width of the axes, in inches."""
    figure = axes.get_figure(root=True)
    return float(axes.get_position().width * figure.get_figwidth()) if figure else 0.0


def legend_height(handles: Sequence[Artist], width: float) -> float:
    """Room that ``add_legend`` needs, in inches."""
    return 0.95 * LINE * ceil(len(handles) / _legend_columns(handles, width)) + 0.05 if handles else 0.0


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend along the upper edge, in as many columns as fit."""
    if handles:
        columns = _legend_columns(handles, figure.get_figwidth())
        corner = (0.05 / figure.get_figwidth(), 1.0 - 0.04 / figure.get_figheight())
        figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=corner, ncols=columns, columnspacing=1.0,
            labelspacing=0.25, handlelength=2.4, handletextpad=0.5,
        )  # fmt: skip


def notes_height(notes: Collection[str], width: float) -> float:
    """Room that ``add_notes`` needs, in inches."""
    return LINE * len(_wrapped(notes, width)) + (0.05 if notes else 0.0)


def add_notes(figure: Figure, notes: Collection[str]) -> None:
    """Sentences along the lower edge, so that they travel with the figure wherever it is pasted."""
    if notes:
        text = "\n".join(_wrapped(notes, figure.get_figwidth()))
        figure.text(0.05 / figure.get_figwidth(), 0.04 / figure.get_figheight(), text, va="bottom", linespacing=1.2)


def _wrapped(notes: Collection[str], width: float) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, _letters(note, width - 0.2))]


def _letters(text: str, width: float) -> int:
    """How many letters of a text fit into ``width`` inches, on average."""
    return max(1, int(0.95 * width * len(text) / max(text_width(text), 1e-9)))


def _legend_columns(handles: Sequence[Artist], width: float) -> int:
    widest = max(text_width(str(handle.get_label())) for handle in handles)
    return max(1, min(len(handles), int((width - 0.1) / (widest + 0.4))))
