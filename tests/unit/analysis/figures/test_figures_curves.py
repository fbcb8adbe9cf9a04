"""Figures of curves: losses, differences by query, power, gradient conflicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.figures import SMALL, words, xs, ys
from support.gates import measured
from support.large_experiments import large_results
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results
from unimoe.analysis.figures import Drawing, all_figures
from unimoe.analysis.figures.gates import QUERIES, power_figure, sorted_differences, stairs
from unimoe.analysis.figures.style import looks
from unimoe.analysis.figures.training import loss_figure
from unimoe.analysis.statistics.power import half_width
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


def test_arms_with_other_seeds_are_averaged_each_over_its_own(tmp_path: Path) -> None:
    own, joint = simulate(3, 30, 0.1, rng=np.random.default_rng(0))
    results = Results(
        tmp_path,
        [
            *measured("rank_only_r8", own),
            *(make_result("joint_r8", seed + 3, row) for seed, row in enumerate(joint[:2])),
        ],
    )
    (item,) = Analysis(results).judgments
    expected = np.sort(joint[:2].mean(axis=0) - own.mean(axis=0))[::-1]
    assert sorted_differences(results, item.gate, item.found) == pytest.approx(100 * expected)


def test_many_queries_are_drawn_in_few_steps_with_the_same_mean() -> None:
    differences = np.sort(np.random.default_rng(0).normal(1.0, 20.0, 13_145))[::-1]
    heights, edges = stairs(differences)
    assert len(heights) <= 1_000
    assert (heights * np.diff(edges)).sum() / 100.0 == pytest.approx(differences.mean())


@pytest.mark.parametrize(("seeds", "dashes"), [(3, {"-", "--", ":"}), (5, {"-", ":"})])
def test_power_curves_pass_through_the_interval_at_hand(tmp_path: Path, seeds: int, dashes: set[str]) -> None:
    analysis = Analysis(large_results(tmp_path, SMALL, seeds=seeds))
    figure = power_figure(analysis.judgments[:1], looks(analysis.results))
    assert figure is not None
    found = analysis.judgments[0].rows[0]
    assert found.estimate.terms is not None
    assert found.estimate.interval is not None
    lines = {line.get_linestyle(): line for line in figure.axes[0].lines if len(xs(line)) > 2}
    assert set(lines) == dashes
    widths = [100 * half_width(found.estimate.terms, seeds, int(queries)) for queries in QUERIES]
    assert ys(lines["-"]) == pytest.approx(widths)
    now = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert ys(now) == pytest.approx([50 * (found.estimate.interval[1] - found.estimate.interval[0])])
    at_hand = np.interp(np.log(60), np.log(QUERIES), np.log(widths))
    assert np.exp(at_hand) == pytest.approx(ys(now)[0], rel=0.02)
    (distance,) = {y for line in figure.axes[0].lines if len(xs(line)) == 2 for y in ys(line)}
    assert distance == pytest.approx(100 * min(abs(found.value - cutoff) for cutoff in (0.01, 0.02)))


def test_conflicts_are_averaged_over_seeds_and_drawn_by_layer_and_step(tmp_path: Path) -> None:
    log = tmp_path / "run" / "joint_r8" / "{}" / "logs" / "gradient_conflicts.jsonl"
    for seed, cosine in ((0, 0.2), (1, 0.4)):
        for layer in ("layer.10", "layer.9"):
            record = conflict(cosine=-cosine if layer == "layer.10" else cosine, layer=layer)
            append_jsonl(Path(str(log).format(f"seed_{seed}")), record | {"cosine_corrected": None})
    results = Results(tmp_path / "run", [make_result("joint_r8", 0, [0.5])])
    figure = next(drawing.figure for drawing in all_figures(Analysis(results)) if drawing.name == "gradient-conflicts")
    drawn = np.asarray(figure.axes[0].collections[0].get_array(), dtype=np.float64)
    assert drawn.ravel().tolist() == pytest.approx([0.3, -0.3])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["layer.9", "layer.10"]


@pytest.mark.parametrize("line", ['{"step": 1}', "{", '{"step": "1"}', "[]"])
def test_a_bad_line_of_conflicts_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    append_jsonl(path, conflict())
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"gradient_conflicts\.jsonl:2: not a record of gradient conflicts"):
        list(all_figures(Analysis(Results(tmp_path, [make_result("joint_r8", 0, [0.5])]))))


def test_a_cut_last_line_of_conflicts_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    append_jsonl(path, conflict())
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "la')
    names = [drawing.name for drawing in all_figures(Analysis(Results(tmp_path, [make_result("joint_r8", 0, [0.5])])))]
    assert "gradient-conflicts" in names


def conflict(cosine: float = 0.1, layer: int | str = 0) -> dict[str, object]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    return {"step": 1, "layer": layer, "cosine": cosine, "magnitude_similarity": 0.9, **dict.fromkeys(names, 0.5)}
