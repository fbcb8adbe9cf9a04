"""Figures of curves: losses, differences by query, power, gradient conflicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.figures import words
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results
from unimoe.analysis.figures import Drawing, all_figures
from unimoe.analysis.figures.gates import sorted_differences
from unimoe.analysis.figures.style import looks
from unimoe.analysis.figures.training import loss_figure
from unimoe.core.errors import DataError
from unimoe.core.io import append_jsonl
from unimoe.results.folder import Seed
from unimoe.results.logs import Log


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
    append_jsonl(path, conflict())
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"gradient_conflicts\.jsonl:2: not a record of gradient conflicts"):
        list(all_figures(Analysis(Results(tmp_path, [make_result("joint_r8", 0, [0.5])]))))


def conflict(cosine: float = 0.1, layer: int | str = 0) -> dict[str, object]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    return {"step": 1, "layer": layer, "cosine": cosine, "magnitude_similarity": 0.9, **dict.fromkeys(names, 0.5)}
