"""What a figure shows, read back from its artists."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from support.gates import measured
from support.results import simulate

from unimoe.results import EvalResult

SMALL = {"quora": 60, "scifact": 30, "trec-covid": 8}
"""Judged queries of each dataset of a small experiment."""


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure) if text.get_text() and text.get_visible()]


def texts(figure: Figure) -> list[Text]:
    return [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]


def xs(line: Line2D) -> list[float]:
    return np.asarray(line.get_xdata(), dtype=np.float64).tolist()  # type: ignore[no-any-return]


def marked(axes: Axes, marker: str) -> list[float]:
    return [xs(line)[0] for line in axes.lines if line.get_marker() == marker]


def segments(axes: Axes) -> list[tuple[float, float]]:
    """Ends of the horizontal lines in black: the intervals."""
    held = [artist for artist in axes.collections if isinstance(artist, LineCollection)]
    black = [artist for artist in held if np.asarray(artist.get_color())[0].tolist() == [0.0, 0.0, 0.0, 1.0]]
    return [
        (float(ends[0, 0]), float(ends[1, 0])) for artist in black for ends in map(np.asarray, artist.get_segments())
    ]


def simulated(dataset: str, tir: float, n: int = 200, rng: np.random.Generator | None = None) -> list[EvalResult]:
    own, joint = simulate(3, n, tir, rng=rng or np.random.default_rng(4))
    return measured("rank_only_r8", own, dataset) + measured("joint_r8", joint, dataset)
