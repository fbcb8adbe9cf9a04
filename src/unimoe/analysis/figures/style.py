"""How every figure looks, and how it is saved: the look of an arm, a grid of panels with its legend and notes, files.

Colours are Okabe and Ito's, which colour-blind readers distinguish; hatches, markers and dashes distinguish arms in
grey. Figures are 3.3 inches wide where they fit one column of a paper and 6.9 where they need two, with text of 7
points. Matplotlib's constrained layout makes room for text; names are cut by their number of letters.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.text import Text

from unimoe.analysis.arms import arm_order
from unimoe.core.console import stderr
from unimoe.core.io import atomic_path
from unimoe.core.limits import harmless

ONE_COLUMN, TWO_COLUMNS = 3.3, 6.9
LETTERS = 15.5  # of a name or sentence in an inch
LINE = 0.14  # height of a line of text, in inches
SHORT, LONG = 20, 30  # letters of a name in a grid of panels, and where there is more room
FONT = "DejaVu Sans"
FONT_SIZE = 7.0
NEUTRAL = "#808080"  # seen on white and on black
HAIRLINE: dict[str, Any] = {"linewidth": 0.6, "color": NEUTRAL}  # a line that shows no data

STYLE: dict[Any, Any] = {
    # A matplotlibrc of the user's must not change a report, or call for LaTeX. The backend is never used.
    **{name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")},
    "font.family": FONT,  # one alone: the PDF backend embeds every font of a list, 0.2 s each
    "font.size": FONT_SIZE,
    **dict.fromkeys(("axes.titlesize", "figure.labelsize"), FONT_SIZE),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width", "hatch.linewidth"), 0.6),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    "axes.titlelocation": "left",
    "axes.titlepad": 3.0,
    "axes.facecolor": "none",
    "legend.columnspacing": 1.0,
    "legend.labelspacing": 0.25,
    "lines.markersize": 4.0,
    "lines.markeredgewidth": 0.4,
    "figure.dpi": 150,  # of PNG files, and of images within PDF and SVG
    "pdf.fonttype": 42,  # editable text, which publishers ask for
    "ps.fonttype": 42,  # else the PDF backend embeds the font again for glyphs from 256 on, such as the minus sign
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may hold dollar signs
}
in_style = mpl.rc_context(STYLE)  # decorates whatever draws

Dashes = Literal["-", "--", "-.", ":"]


@dataclass(frozen=True)
class Look:
    """How an arm is drawn, in every figure: colour and dashes of lines, hatch of bars, marker of points."""

    colour: tuple[float, float, float] | str
    hatch: str
    marker: str
    dashes: Dashes


_LOOKS = {
    "bm25": Look("#7F7F7F", "xxxx", "s", "-"),
    "zero_shot": Look("#C8C8C8", "", "D", ":"),
    "rank_only": Look("#0072B2", "", "o", "-"),
    "emb_only": Look("#009E73", "||||", "^", "-."),
    "joint": Look("#D55E00", "////", "v", "--"),
}
_OTHERS = (
    Look("#CC79A7", "\\\\\\\\", "P", "-"),
    Look("#E69F00", "oooo", "X", "--"),
    Look("#56B4E9", "----", "<", "-."),
    Look("#F0E442", "++++", ">", ":"),
)


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """Return the look of each arm by its task word, or the next one of all others; used again, it is lighter."""
    found: dict[str, Look] = {}
    used: Counter[Look] = Counter()
    others = itertools.cycle(_OTHERS)
    for arm in sorted(arms, key=arm_order):
        look = next((look for word, look in _LOOKS.items() if f"{arm}_".startswith(f"{word}_")), None) or next(others)
        colour = np.array(to_rgb(look.colour))
        red, green, blue = (1.0 + (colour - 1.0) * 0.7 ** used[look]).tolist()
        found[arm] = replace(look, colour=(red, green, blue))
        used[look] += 1
    return found


class Picture(Figure):
    """A figure that a notebook shows by itself, since pyplot has no part in it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with mpl.rc_context(STYLE):
            _choose_fonts(self)
            self.savefig(buffer, format="png")
        return buffer.getvalue()


def legend_of(labels: Mapping[str, str], looks: Mapping[str, Look], **own: Any) -> list[Line2D]:
    """Return what a legend shows of arms, by their labels; ``own`` are properties that replace those of the looks."""
    shown = [(looks[arm], label) for arm, label in labels.items()]
    lines = [{"color": a.colour, "ls": a.dashes, "marker": a.marker, "label": label} | own for a, label in shown]
    return [Line2D([], [], **line) for line in lines]


def panels(
    titles: Sequence[str],
    xlabel: str,
    ylabel: str = "",
    *,
    columns: int = 3,
    wide: bool = False,
    height: float | None = None,
    legend: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Make a figure of equal panels, a legend along its upper edge, a label along its lower one.

    ``height`` is that of a panel with its title, in inches, by default low where there are many. A figure is as wide as
    one column of a paper where panels lie below each other, as two where they do not or it shall be ``wide``. Only
    outer panels have tick labels: the caller sets one scale for all, because limits that panels share take time in
    proportion to the square of their number.
    """
    n, columns = len(titles), min(len(titles), columns)
    width = TWO_COLUMNS if wide or columns > 1 else ONE_COLUMN
    height = height or (1.25 if n > 3 else 1.6)
    letters = int(LETTERS * width)
    in_a_row = max(1, letters // (8 + max((len(str(handle.get_label())) for handle in legend), default=0)))
    lines = 2 + ceil(len(legend) / in_a_row)
    figure = Picture((width, ceil(n / columns) * height + LINE * lines), layout="constrained")
    grid = figure.add_gridspec(ceil(n / columns), columns)
    axes = [figure.add_subplot(grid[divmod(i, columns)], title=title) for i, title in enumerate(titles)]
    for i, panel in enumerate(axes):
        panel.tick_params(labelleft=i % columns == 0, labelbottom=i + columns >= n)
    annotate(figure, [xlabel])
    figure.supylabel(ylabel)
    if legend:
        figure.legend(handles=list(legend), loc="outside upper left", ncols=in_a_row)
    return figure, axes


def name_rows(axes: Axes, names: Mapping[int, str]) -> None:
    """Label the rows of a panel; matplotlib sets these texts again whenever it draws, unlike all others of a figure."""
    axes.set_yticks(list(names), [harmless(name) for name in names.values()])


@in_style
def annotate(figure: Figure, texts: Sequence[str]) -> None:
    """Add lines below a figure, and make room for them: they travel with it wherever it is pasted."""
    below = [fill(text, int(LETTERS * figure.get_figwidth())) for text in texts]
    figure.set_figheight(figure.get_figheight() + LINE * sum(1 + text.count("\n") for text in below))
    figure.supxlabel("\n".join(filter(None, [figure.get_supxlabel(), *below])))


@in_style
def save(figure: Figure, stem: Path) -> Path:
    """Write ``{stem}.pdf`` and ``{stem}.png``, without dates, and return the PNG file."""
    png, pdf = (stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf"))
    _arrange(figure)
    with atomic_path(png) as temporary:
        figure.savefig(temporary, format="png", pil_kwargs={"compress_level": 4})
    with atomic_path(pdf) as temporary:
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
    return png


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as an ``<svg>`` element for an HTML page that has others.

    Text stays text, the background is transparent, and what is black takes the page's colour of text, so that it can be
    read in dark mode. Every id begins with ``name``, unique in the page, of letters, digits, ``-`` and ``_``; the
    page's element ``{name}-caption`` names the figure to a screen reader.
    """
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        _arrange(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})

    def inlined(tag: re.Match[str]) -> str:
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag[0])
        return text.replace("#000000", "currentColor").replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif")

    root = f'<svg role="img" aria-labelledby="{name}-caption" fill="currentColor" stroke-linejoin="round"'
    root += ' stroke-linecap="butt"'
    svg = root + buffer.getvalue().partition("<svg")[2]
    # Metadata says nothing here, a style sheet would hold for the whole page, and XML holds no control characters.
    svg = harmless(re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL))
    return re.sub("<[^>]+>", inlined, svg)  # within tags alone: the texts of a figure hold neither < nor >


def _arrange(figure: Figure) -> None:
    """Make room for all text once, for all formats."""
    _choose_fonts(figure)
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)


def _choose_fonts(figure: Figure) -> None:
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(harmless(text.get_text()))  # a mark that turns text would turn the score behind a name
            text.set_fontfeatures(["-liga"])  # a ligature makes the PDF embed a second font, 0.2 s a file
            if lacking := _lacking(findfont(FONT), text.get_text()):
                text.set_fontfamily([FONT, *_fonts_with(lacking)])


def _lacking(font: str, text: str) -> str:
    """Return the letters of a text that the font in a file lacks, each once, as of Korean names."""
    has = get_font(font).get_char_index
    return "".join(sorted({letter for letter in text if letter.isprintable() and not has(ord(letter))}))


@cache
def _fonts_with(letters: str) -> list[str]:
    """Return a font of this machine that has these letters, if there is one."""
    fonts = (font for font in fontManager.ttflist if not font.name.startswith("Last Resort"))  # which has boxes alone
    found = next(([font.name] for font in fonts if not _lacking(font.fname, letters)), [])
    if not found:
        _say_boxes()
    return found


@cache
def _say_boxes() -> None:
    warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)  # one for each letter, figure and format
    said = "warning: names in figures have letters of no font here; install one that has them, such as Noto Sans CJK"
    stderr.print(said, style="yellow", soft_wrap=True)
