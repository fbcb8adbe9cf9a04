"""Figures: scores per dataset and loss curves, as PNG and PDF.

Colours are Okabe and Ito's, told apart by colour-blind readers; hatching and labels tell the arms apart in grey. An
arm has the same colour in every figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from unimoe.analysis.loading import Log, Results, Seed
from unimoe.analysis.summaries import arm_order, caveat_notes
from unimoe.io import atomic_path
from unimoe.results import safe_name

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # editable text, which publishers ask for
    "text.parse_math": False,  # names may hold dollar signs
}
_ROLES = {
    "bm25": ("#7F7F7F", "xx"),
    "zero_shot": ("#C8C8C8", ""),
    "rank_only": ("#0072B2", ""),
    "emb_only": ("#009E73", ".."),
    "joint": ("#D55E00", "//"),
}
_OTHERS = (("#CC79A7", "\\\\"), ("#E69F00", "oo"), ("#56B4E9", "--"), ("#F0E442", "++"))

Look = tuple[tuple[float, float, float], str]
"""Fill colour and hatch of an arm."""


def draw_all(results: Results, output_path: Path) -> tuple[Path, ...]:
    """Draw every figure the results allow into a folder; loss curves need training logs.

    Returns:
        The PNG files; a PDF of the same name lies beside each.
    """
    with mpl.rc_context(_STYLE):
        looks = _looks({*results, *(name for name, _ in results.logs)})
        figures = {safe_name(key): score_figure(results, key, looks) for key in results.dataset_keys}
        if any(results.logs.values()):
            figures["loss-curves"] = loss_figure(results.logs, looks, caveat_notes(results))
        return tuple(_save(figure, output_path / name) for name, figure in figures.items())


def score_figure(results: Results, key: str, looks: Mapping[str, Look]) -> Figure:
    """Main metric of every arm on one dataset: mean, standard deviation, and a dot per seed."""
    measured = results.measured(key)
    arms = sorted({r.config_name for r in measured}, key=arm_order, reverse=True)
    notes = caveat_notes(results)
    figure = Figure(figsize=(6.4, 1.15 + 0.42 * len(arms) + 0.16 * len(notes)), layout="constrained")
    axes = figure.add_subplot()
    for position, arm in enumerate(arms):
        values = [100 * r.aggregate[r.main_metric] for r in measured if r.config_name == arm]
        _score_bar(axes, position, values, looks[arm])
    axes.set_yticks(range(len(arms)), [_plain(arm) for arm in arms])
    axes.set_ylim(-0.6, len(arms) - 0.4)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{measured[0].main_metric} x 100 (bar: mean over seeds, whisker: ± std, dots: seeds)")
    axes.set_title(f"{_plain(key)}, {len(measured[0].per_query):,} queries", loc="left", weight="bold")
    _footnote(figure, notes)
    return figure


def loss_figure(logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Training losses by step, a panel per loss: seeds thin, their mean thick, smoothed over a twentieth of the run."""
    panels = _losses(logs)
    figure = Figure(figsize=(6.4, 0.6 + 2.3 * len(panels) + 0.16 * len(notes)), layout="constrained")
    for row, (loss, curves) in enumerate(sorted(panels.items(), reverse=True), start=1):
        axes = figure.add_subplot(len(panels), 1, row)
        for i, arm in enumerate(sorted(curves, key=arm_order)):
            _loss_curves(axes, arm, curves[arm], looks[arm], dashes=i)
        axes.set_title(f"{loss} loss", loc="left", weight="bold")
        axes.set_xlabel("step")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.legend(frameon=False, ncols=2)
    _footnote(figure, notes)
    return figure


def _score_bar(axes: Axes, position: int, values: Sequence[float], look: Look) -> None:
    colour, hatch = look
    mean = float(np.mean(values))
    axes.barh(position, mean, height=0.62, color=colour, hatch=hatch, edgecolor="black", linewidth=0.6)
    reach = mean
    if len(values) > 1:
        std = float(np.std(values, ddof=1))
        axes.errorbar(mean, position, xerr=std, color="black", capsize=3, linewidth=1.0)
        heights = position + np.linspace(-0.18, 0.18, len(values))
        axes.plot(values, heights, "o", color="white", markeredgecolor="black", markersize=3.6, markeredgewidth=0.7)
        reach = max(mean + std, *values)
    axes.annotate(f"{mean:.2f}", (reach, position), xytext=(5, 0), textcoords="offset points", va="center")


def _loss_curves(axes: Axes, arm: str, seeds: Sequence[Mapping[int, float]], look: Look, dashes: int) -> None:
    colour, _ = look
    style = ("-", "--", "-.", ":")[dashes % 4]
    for curve in seeds:
        axes.plot(list(curve), _smooth(list(curve.values())), style, color=colour, alpha=0.35, linewidth=0.7)
    shared = sorted(set.intersection(*(set(curve) for curve in seeds)))
    mean = [float(np.mean([curve[step] for curve in seeds])) for step in shared]
    label = f"{_plain(arm)} ({len(seeds)} seeds)" if len(seeds) > 1 else _plain(arm)
    axes.plot(shared, _smooth(mean), style, color=colour, linewidth=1.8, label=label)


def _losses(logs: Mapping[tuple[str, Seed], Log]) -> dict[str, dict[str, list[dict[int, float]]]]:
    """Loss name to arm to one ``{step: loss}`` per seed."""
    panels: dict[str, dict[str, list[dict[int, float]]]] = {}
    for (arm, _), log in logs.items():
        curves: dict[str, dict[int, float]] = {}
        for record in log:
            for loss, value in _parts(record):
                curves.setdefault(loss, {})[record["step"]] = value
        for loss, curve in curves.items():
            panels.setdefault(loss, {}).setdefault(arm, []).append(curve)
    return panels


def _parts(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The losses of one record: by part where it has parts, else the one loss under its task's name."""
    parts = [(name, record.get(f"{name}_loss")) for name in ("ranking", "embedding")]
    held = [(name, float(value)) for name, value in parts if value is not None]
    if held:
        yield from held
        return
    task = str(record.get("task", ""))
    name = next((name for word, name in (("rank", "ranking"), ("emb", "embedding")) if word in task), "joint")
    yield name, record["loss"]


def _smooth(values: Sequence[float]) -> list[float]:
    """Running mean over the last twentieth of the run's steps; early steps average what there is."""
    window = max(1, len(values) // 20)
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    smoothed: list[float] = ((total[ends] - total[starts]) / (ends - starts)).tolist()
    return smoothed


def _looks(arms: set[str]) -> dict[str, Look]:
    """Colour and hatch by the task word; further arms of the same word are lighter."""
    looks: dict[str, Look] = {}
    used: dict[str, int] = {}
    others = 0
    for arm in sorted(arms, key=arm_order):
        word = next((word for word in _ROLES if arm == word or arm.startswith(f"{word}_")), None)
        if word is None:
            colour, hatch = _OTHERS[others % len(_OTHERS)]
            others += 1
        else:
            colour, hatch = _ROLES[word]
        shade = used.get(word or arm, 0)
        used[word or arm] = shade + 1
        light = 1.0 - 0.7**shade
        red, green, blue = (channel + (1.0 - channel) * light for channel in to_rgb(colour))
        looks[arm] = ((red, green, blue), hatch)
    return looks


def _footnote(figure: Figure, notes: Sequence[str]) -> None:
    if notes:
        figure.supxlabel("\n".join(_plain(note, limit=110) for note in notes), fontsize=7, ha="left", x=0.01)


def _plain(text: str, limit: int = 48) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _save(figure: Figure, stem: Path) -> Path:
    """Write PDF and PNG without dates, so that equal figures are equal files."""
    png = stem.with_name(f"{stem.name}.png")
    with atomic_path(stem.with_name(f"{stem.name}.pdf")) as temporary:
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
    with atomic_path(png) as temporary:
        figure.savefig(temporary, format="png", dpi=200)
    return png
