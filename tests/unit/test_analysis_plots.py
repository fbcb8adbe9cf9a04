from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest
from support.results import make_result, write_experiment

from unimoe.analysis.compare import Results, generate_plots, load_all_results
from unimoe.analysis.loading import Log, Seed
from unimoe.analysis.plots import loss_figure, score_figure

GREY = ((0.5, 0.5, 0.5), "")


def test_draws_a_chart_per_dataset_and_the_loss_curves(tmp_path: Path) -> None:
    write_experiment(tmp_path / "run")
    figures = generate_plots(load_all_results(tmp_path / "run"), tmp_path / "figures")
    assert [path.name for path in figures] == ["reranking-apidocs.png", "embedding-apidocs.png", "loss-curves.png"]
    for path in figures:
        assert matplotlib.image.imread(path).std() > 0.01
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    results = Results(tmp_path, [make_result("joint_r8", 0, [0.5])])
    first, second = (generate_plots(results, tmp_path / name)[0] for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".pdf").read_bytes() == second.with_suffix(".pdf").read_bytes()


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    results = Results(tmp_path, [make_result(r"a$\frac{$_b%", 0, [0.5], dataset=r"$\x{ & <script>")])
    assert len(generate_plots(results, tmp_path)) == 1


def test_bars_are_means_and_dots_are_seeds() -> None:
    items = [make_result("joint_r8", seed, [score]) for seed, score in enumerate((0.2, 0.4, 0.6))]
    figure = score_figure(Results(Path("outputs"), items), "reranking/apidocs", {"joint_r8": GREY})
    (axes,) = figure.axes
    assert axes.patches[0].get_width() == pytest.approx(40.0)  # type: ignore[attr-defined]
    dots = next(line for line in axes.lines if line.get_marker() == "o")
    assert list(dots.get_xdata()) == pytest.approx([20.0, 40.0, 60.0])  # type: ignore[arg-type]


def test_losses_are_drawn_by_part_where_a_log_has_parts() -> None:
    logs: dict[tuple[str, Seed], Log] = {
        ("joint_r8", 0): ({"step": 1, "loss": 3.0, "ranking_loss": 1.0, "embedding_loss": 2.0},),
        ("rank_only_r8", 0): ({"step": 1, "loss": 1.0, "task": "rank_only"},),
        ("odd", 0): ({"step": 1, "loss": 1.0},),
    }
    figure = loss_figure(logs, {arm: GREY for arm, _ in logs})
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["ranking loss", "joint loss", "embedding loss"]
