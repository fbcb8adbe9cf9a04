"""Figures of curves: losses, differences by query, gradient conflicts; their numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from support.figures import words
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.figures import Drawing, all_figures
from unimoe.analysis.figures.gates import sorted_differences
from unimoe.analysis.figures.style import looks
from unimoe.analysis.figures.training import conflict_rate, loss_figure, norm_ratio
from unimoe.core.errors import DataError
from unimoe.core.io import append_jsonl
from unimoe.results.folder import Results, Seed
from unimoe.results.logs import Conflict, Log


def test_losses_are_drawn_by_part_where_a_log_has_parts() -> None:
    logs: dict[tuple[str, Seed], Log] = {
        ("joint_r8", 0): ({"step": 1, "loss": 3.0, "ranking_loss": 1.0, "embedding_loss": 2.0},),
        ("rank_only_r8", 0): ({"step": 1, "loss": 1.0, "task": "rank_only"},),
        ("odd", 0): ({"step": 1, "loss": 1.0},),
    }
    figure = loss_figure(logs, looks(arm for arm, _ in logs))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ranking loss", "joint loss", "embedding loss"]


def test_differences_are_sorted_counted_and_keep_their_mean(results: Results, drawings: dict[str, Drawing]) -> None:
    item = Analysis(results).interference[0]
    differences = sorted_differences(results, item.gate, item.found)
    assert list(differences) == sorted(differences, reverse=True)
    assert differences.mean() == pytest.approx(100 * item.found.delta)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    counts = f"won {wins}, tied {len(differences) - wins - losses}, lost {losses}"
    assert any(text.startswith(counts) for text in words(drawings["differences-reranking"].figure))


@pytest.mark.parametrize("line", ['{"step": 1}', "{", '{"step": "1"}', "[]"])
def test_a_bad_line_of_conflicts_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    append_jsonl(path, record(1, 0))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"gradient_conflicts\.jsonl:2: not a record of gradient conflicts"):
        list(all_figures(Analysis(Results(tmp_path, [make_result("joint_r8", 0, [0.5])]))))


def record(step: int, layer: int, cosine: float | None = 0.1, **values: float | None) -> dict[str, Any]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    others = dict.fromkeys((*names, "magnitude_similarity"), 0.5)
    return {"step": step, "layer": layer, "cosine": cosine, **others, **values}


def log(*records: dict[str, Any]) -> list[Conflict]:
    return [Conflict.model_validate(one) for one in records]


def drawings(folder: Path, logs: dict[int, list[dict[str, Any]]]) -> dict[str, Drawing]:
    for seed, records in logs.items():
        for one in records:
            append_jsonl(folder / "joint_r8" / f"seed_{seed}" / "logs" / "gradient_conflicts.jsonl", one)
    found = all_figures(Analysis(Results(folder, [make_result("joint_r8", 0, [0.5])])))
    return {drawing.name: drawing for drawing in found}


def lines(axes: Axes) -> list[list[tuple[float, float]]]:
    """Points of the curves; the line at 1 is none."""
    found = [line for line in axes.lines if line.get_linewidth() != 0.6]
    return [list(zip(*(np.asarray(line.get_data(), dtype=float).tolist()), strict=True)) for line in found]


def test_the_rate_counts_the_layers_that_have_a_cosine() -> None:
    found = log(
        record(1, 0, -0.1), record(1, 1, 0.2), record(1, 2, -0.3), record(1, 3, None),
        record(11, 0, 0.0), record(11, 1, -0.1, cosine_corrected=None),
    )  # fmt: skip
    assert conflict_rate(found, "cosine") == {1: pytest.approx(2 / 3), 11: 0.5}
    assert conflict_rate(found, "cosine_corrected") == {1: 0.0, 11: 0.0}


def test_the_ratio_is_of_all_layers_together() -> None:
    found = log(record(1, 0, norm_rank=3.0, norm_embed=0.6), record(1, 1, norm_rank=4.0, norm_embed=0.8))
    assert norm_ratio(found) == {1: pytest.approx(5.0)}


def test_a_log_of_one_step_is_a_point(tmp_path: Path) -> None:
    found = drawings(tmp_path, {0: [record(1, 0)]})
    (line,) = (line for line in found["norm-ratio"].figure.axes[0].lines if line.get_linewidth() != 0.6)
    assert line.get_marker() == "v"
