"""How every figure looks: fonts, the look of an arm, text that fits, panels on a page.

Colours are Okabe and Ito's, which colour-blind readers distinguish; hatches, markers and dashes distinguish arms in
grey. Figures are 3.3 inches wide where they fit one column of a paper and 6.9 where they need two, with text of 7
points. Sizes are set in inches: automatic layout would draw every figure several times.
"""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import matplotlib as mpl
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
LINE = 0.135  # height of a line of text, in inches
NEUTRAL = "#808080"  # seen on white and on black

STYLE: dict[Any, Any] = {
    # A matplotlibrc of the user's must not change a report, or call for LaTeX. The backend is never used.
    **{name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")},
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

_SHORTEST = 8  # characters that are left of a name

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
    """How an arm is drawn, in every figure: colour and dashes of lines, hatch of bars, marker of points."""

    colour: tuple[float, float, float]
    hatch: str
    marker: str
    dashes: Dashes


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """Return the look of each arm by its task word; further arms of the same word are lighter."""
    found: dict[str, Look] = {}
    used: Counter[str] = Counter()
    others = itertools.cycle(_OTHERS)
    for arm in sorted(arms, key=arm_order):
        word = next((word for word in _ROLES if arm == word or arm.startswith(f"{word}_")), arm)
        parts = _ROLES[word] if word in _ROLES else next(others)
        light = 1.0 - 0.7 ** used[word]
        used[word] += 1
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
    """Return each name cut to one line of about ``width`` inches; different names stay different."""
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
    left: float,
    xlabel: str,
    ylabel: str = "",
    width: float | None = None,
    height: float | None = None,
    columns: int = 3,
    follow: bool = False,
    right: float = 0.2,
    above: float = 0.2,
    legend: Sequence[Artist] = (),
    notes: Sequence[str] = (),
) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``n`` equal panels, its legend along its upper edge and its notes along its lower one.

    Panels have one scale across: only the outer ones have tick labels. Notes travel with the figure wherever it is
    pasted. Lengths are in inches: ``left`` is room for the tick labels of the first of at most ``columns`` panels in a
    row, ``above`` for the titles of the first row, ``height`` that of a panel without title and tick labels, by default
    low where there are many rows. The default ``width`` is one column of a paper for panels below each other, else two.
    ``follow`` says whether the scale across adapts to what any panel shows. That takes time in proportion to the square
    of their number: where there are many, set the same limits in each instead.
    """
    columns = min(n, columns)
    rows = ceil(n / columns)
    width = width or (ONE_COLUMN if columns == 1 else TWO_COLUMNS)
    height = height or (0.95 if n > 3 else 1.4)
    gap, between, below = 0.27, 0.14, 0.4
    lines = [line for note in notes for line in textwrap.wrap(note, _letters(note, width - 0.2))]
    in_a_row = _legend_columns(legend, width)
    head = 0.95 * LINE * ceil(len(legend) / in_a_row) + 0.05 if legend else 0.0
    foot = LINE * len(lines) + (0.05 if lines else 0.0)
    total = head + above + rows * height + (rows - 1) * gap + below + foot
    figure = Figure(figsize=(width, total))
    left += 1.2 * LINE if ylabel else 0.0
    across = (width - left - right - (columns - 1) * between) / columns
    axes: list[Axes] = []
    for i in range(n):
        row, column = divmod(i, columns)
        place = left + column * (across + between), total - head - above - height - row * (height + gap)
        box = place[0] / width, place[1] / total, across / width, height / total
        axes.append(figure.add_axes(box, sharex=axes[0] if axes and follow else None))
        axes[-1].tick_params(labelleft=column == 0, labelbottom=i + columns >= n)
        for axis in (axes[-1].xaxis, axes[-1].yaxis):
            axis.set_label_coords(0.0, 0.0)  # there is none, yet its place would be worked out
    middle = (left + width - right) / 2.0
    figure.supxlabel(xlabel, x=middle / width, y=(foot + 0.05) / total, va="bottom")
    figure.supylabel(ylabel, x=0.05 / width, ha="left")
    if legend:
        figure.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(0.05 / width, 1.0 - 0.04 / total), ncols=in_a_row,
            columnspacing=1.0, labelspacing=0.25, handlelength=2.4, handletextpad=0.5,
        )  # fmt: skip
    if lines:
        figure.text(0.05 / width, 0.04 / total, "\n".join(lines), va="bottom", linespacing=1.2)
    return figure, axes


def set_titles(grid: Sequence[Axes], names: Sequence[str], facts: Sequence[str]) -> None:
    """Title each panel with its name, cut where it is long but never as another one is, and a fact in brackets."""
    short = fit_all(names, 1.3)
    for axes, name, fact in zip(grid, names, facts, strict=True):
        axes.set_title(fit(f"{short[name]} ({fact})", panel_width(axes)), loc="left")


def panel_width(axes: Axes) -> float:
    """Return the width of the axes, in inches."""
    figure = axes.get_figure(root=True)
    return float(axes.get_position().width * figure.get_figwidth()) if figure else 0.0


def _letters(text: str, width: float) -> int:
    """Return how many letters of a text fit into ``width`` inches, on average."""
    return max(1, int(0.95 * width * len(text) / max(text_width(text), 1e-9)))


def _legend_columns(handles: Sequence[Artist], width: float) -> int:
    widest = max((text_width(str(handle.get_label())) for handle in handles), default=0.0)
    return max(1, min(len(handles), int((width - 0.1) / (widest + 0.4))))
