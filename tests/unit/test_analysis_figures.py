from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from support.large_experiments import large_results, write_conflict_log
from support.results import make_result, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, generate_plots, load_all_results
from unimoe.analysis.crossed import crossed_mean
from unimoe.analysis.figures import Drawing, all_figures, save, to_svg
from unimoe.analysis.figures.differences import sorted_differences, stairs
from unimoe.analysis.figures.losses import loss_figure
from unimoe.analysis.figures.power_curve import QUERIES, power_curves
from unimoe.analysis.figures.scores import score_panels
from unimoe.analysis.figures.style import FONT_SIZE, ONE_COLUMN, TWO_COLUMNS, fit, looks, text_width
from unimoe.analysis.interference import compute_interference_metrics
from unimoe.analysis.loading import Pair, Seed
from unimoe.analysis.logs import Log
from unimoe.errors import DataError
from unimoe.io import append_jsonl

HOSTILE = r"a$\frac{$_b% & <script>\x{#000000}"
SMALL = {"quora": 60, "scifact": 30, "trec-covid": 8}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("figures") / "run"
    write_experiment(folder, caveats=["smoke run"])
    for seed in (0, 1, 2):
        write_conflict_log(folder, "joint_r8", seed, np.random.default_rng(seed), layers=4, steps=3)
    return load_all_results(folder)


@pytest.fixture(scope="module")
def drawings(results: Results) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in all_figures(Analysis(results))}


@pytest.fixture(scope="module")
def svgs(drawings: dict[str, Drawing]) -> dict[str, str]:
    return {name: to_svg(drawing.figure, name) for name, drawing in drawings.items()}


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure) if text.get_text()]


def texts(figure: Figure) -> list[Text]:
    return [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]


def xs(line: Line2D) -> list[float]:
    return np.asarray(line.get_xdata(), dtype=np.float64).tolist()  # type: ignore[no-any-return]


def ys(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata(), dtype=np.float64).tolist()  # type: ignore[no-any-return]


def test_every_figure_is_drawn_as_png_and_pdf(results: Results, tmp_path: Path) -> None:
    paths = generate_plots(results, tmp_path)
    assert [path.stem for path in paths] == [
        "tir-forest",
        *("scores-reranking", "differences-reranking", "power-reranking"),
        *("scores-embedding", "differences-embedding", "power-embedding"),
        "loss-curves",
        "gradient-conflicts",
        "conflict-rate",
        "norm-ratio",
    ]
    for path in paths:
        assert matplotlib.image.imread(path).std() > 0.01
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_equal_results_give_equal_files(results: Results, tmp_path: Path) -> None:
    kept: list[tuple[bytes, bytes, str]] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        drawing = next(all_figures(Analysis(results)))
        png = save(drawing.figure, folder / drawing.name)
        kept.append((png.read_bytes(), png.with_suffix(".pdf").read_bytes(), to_svg(drawing.figure, drawing.name)))
    assert kept[0] == kept[1]


def test_figures_fit_one_or_two_columns_in_readable_type(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        assert drawing.figure.get_figwidth() in (ONE_COLUMN, TWO_COLUMNS)
        assert min(float(text.get_fontsize()) for text in texts(drawing.figure)) >= FONT_SIZE >= 7


def test_nothing_is_drawn_beyond_the_page(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        drawn, (width, height) = drawing.figure.get_tightbbox(), drawing.figure.get_size_inches()
        assert min(drawn.x0, drawn.y0) >= -0.02, drawing.name
        assert drawn.x1 <= width + 0.02, drawing.name
        assert drawn.y1 <= height + 0.02, drawing.name


def test_captions_say_how_to_read_and_caveats_stand_in_the_figure(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        assert drawing.caption.endswith(".")
        assert "{" not in drawing.caption
        assert "Caveat: smoke run" in words(drawing.figure)


def test_without_logs_there_is_no_figure_of_logs(tmp_path: Path) -> None:
    write_experiment(tmp_path, logs=False)
    names = [drawing.name for drawing in all_figures(Analysis(load_all_results(tmp_path)))]
    assert names
    assert not {"loss-curves", "gradient-conflicts", "conflict-rate", "norm-ratio"}.intersection(names)


def test_one_arm_with_one_query_has_a_bar_without_an_interval(tmp_path: Path) -> None:
    results = Results(tmp_path, [make_result("joint_r8", 0, [0.5])])
    assert [drawing.name for drawing in all_figures(Analysis(results))] == ["scores-reranking"]
    assert score_panels(results, "reranking")[0].scores["joint_r8"].interval is None


def test_svgs_share_a_page_without_sharing_ids_or_styles(svgs: dict[str, str]) -> None:
    ids: list[str] = []
    for text in svgs.values():
        root = ET.fromstring(text)
        its_ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        references = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
        assert references <= set(its_ids)
        assert not [element for element in root.iter() if element.tag.endswith(("style", "metadata"))]
        ids += its_ids
    assert len(ids) == len(set(ids))


def test_svgs_take_the_colour_of_the_page(svgs: dict[str, str]) -> None:
    for text in svgs.values():
        assert "#000000" not in text
        assert "currentColor" in text
        assert ET.fromstring(text).attrib["fill"] == "currentColor"
    assert "fill: #ffffff" not in svgs["tir-forest"]  # no white page


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    rows = ([0.5, 0.4], [0.6, 0.3])
    arms = (f"rank_only {HOSTILE}", f"joint {HOSTILE}")
    items = [make_result(arm, seed, row, dataset=HOSTILE) for arm in arms for seed, row in enumerate(rows)]
    results = Results(tmp_path, items, pairs=[Pair("reranking", *arms)])
    drawn = {drawing.name: drawing for drawing in all_figures(Analysis(results))}
    assert {"tir-forest", "scores-reranking", "differences-reranking"} <= drawn.keys()
    for name, drawing in drawn.items():
        found = [element.text or "" for element in ET.fromstring(to_svg(drawing.figure, name)).iter()]
        assert any(HOSTILE[:12] in text for text in found)
        assert save(drawing.figure, tmp_path / name).exists()


def test_bars_are_means_lines_are_intervals_and_dots_are_seeds(tmp_path: Path) -> None:
    matrix = np.array([[0.1, 0.3], [0.3, 0.5], [0.4, 0.8]])
    results = Results(tmp_path, [make_result("joint_r8", seed, row) for seed, row in enumerate(matrix)])
    (axes,) = next(all_figures(Analysis(results))).figure.axes
    interval = crossed_mean(100 * matrix)
    assert interval is not None
    assert axes.patches[0].get_width() == pytest.approx(40.0)  # type: ignore[attr-defined]
    assert xs(axes.lines[0]) == pytest.approx([20.0, 40.0, 60.0])
    drawn = axes.collections[0].get_segments()[0]  # type: ignore[attr-defined]
    assert drawn[:, 0] == pytest.approx([interval.low, interval.high])


def test_the_overview_has_a_row_per_dataset_and_a_point_per_arm(tmp_path: Path) -> None:
    results = large_results(tmp_path, SMALL, seeds=2)
    drawn = {drawing.name: drawing.figure for drawing in all_figures(Analysis(results))}
    (axes,) = drawn["overview-reranking"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SMALL)
    points = {tuple(xs(line)) for line in axes.lines}
    panels = score_panels(results, "reranking")
    assert points == {tuple(panel.scores[arm].mean for panel in panels) for arm in panels[0].scores}
    assert len(drawn["scores-reranking"].axes) == len(SMALL)


def test_an_arm_looks_the_same_in_every_figure_and_unlike_the_others() -> None:
    arms = ["bm25", "zero_shot", "rank_only_r8", "rank_only_r16", "emb_only_r8", "joint_r8", "ours", "theirs"]
    seen = looks(arms)
    assert looks(reversed(arms)) == seen
    assert len({look.colour for look in seen.values()}) == len(arms)
    without = {replace(seen[arm], colour=(0.0, 0.0, 0.0)) for arm in arms if arm != "rank_only_r16"}
    assert len(without) == len(arms) - 1  # told apart in grey too


def test_losses_are_drawn_by_part_where_a_log_has_parts() -> None:
    logs: dict[tuple[str, Seed], Log] = {
        ("joint_r8", 0): ({"step": 1, "loss": 3.0, "ranking_loss": 1.0, "embedding_loss": 2.0},),
        ("rank_only_r8", 0): ({"step": 1, "loss": 1.0, "task": "rank_only"},),
        ("odd", 0): ({"step": 1, "loss": 1.0},),
    }
    figure = loss_figure(logs, looks(arm for arm, _ in logs))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ranking loss", "joint loss", "embedding loss"]


def test_the_forest_shows_estimates_intervals_cutoffs_and_labels(tmp_path: Path) -> None:
    results = large_results(tmp_path, SMALL, seeds=3)
    measured = compute_interference_metrics(results).measured
    figure = next(all_figures(Analysis(results))).figure
    (axes,) = figure.axes
    squares = [xs(line)[0] for line in axes.lines if line.get_marker() == "s"]
    assert squares == pytest.approx([100 * item.crossed.estimate for item in measured if item.crossed])
    assert sum(line.get_marker() == "D" for line in axes.lines) == 4  # two ways of averaging, two tasks
    seen = words(figure)
    assert {"FAIL (below 1 %) ", "MARGINAL", " PASS (from 2 %)"} <= set(seen)
    assert next(text for text in seen if "[" in text).startswith(f"{squares[0]:.2f} [")
    low, high = axes.get_xlim()
    assert low < min(0.0, *squares)
    assert high > max(3.0, *squares)


def test_one_seed_gives_a_forest_without_intervals_and_no_power_curve(tmp_path: Path) -> None:
    results = Results(tmp_path, [make_result(arm, 0, [0.5, 0.6]) for arm in ("rank_only_r8", "joint_r8")])
    drawn = {drawing.name: drawing.figure for drawing in all_figures(Analysis(results))}
    assert set(drawn) == {"tir-forest", "scores-reranking", "differences-reranking"}
    assert "FAIL (rule alone)" in words(drawn["tir-forest"])


def test_differences_are_sorted_counted_and_keep_their_mean(results: Results, drawings: dict[str, Drawing]) -> None:
    item = compute_interference_metrics(results).measured[0]
    differences = sorted_differences(results, item)
    assert list(differences) == sorted(differences, reverse=True)
    assert differences.mean() == pytest.approx(100 * item.delta)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    assert f"won {wins}, tied {len(differences) - wins - losses}, lost {losses}" in words(
        drawings["differences-reranking"].figure
    )


def test_many_queries_are_drawn_in_few_steps_with_the_same_mean() -> None:
    differences = np.sort(np.random.default_rng(0).normal(1.0, 20.0, 13_145))[::-1]
    heights, edges = stairs(differences)
    assert len(heights) <= 1_000
    assert (heights * np.diff(edges)).sum() / 100.0 == pytest.approx(differences.mean())


def test_power_curves_pass_through_the_interval_at_hand(tmp_path: Path) -> None:
    results = large_results(tmp_path, SMALL, seeds=3)
    curve = power_curves(compute_interference_metrics(results).measured)[0]
    figure = next(drawing.figure for drawing in all_figures(Analysis(results)) if drawing.name == "power-reranking")
    lines = {line.get_linestyle(): line for line in figure.axes[0].lines if len(xs(line)) > 2}
    assert set(lines) == {"-", "--", ":"}
    assert ys(lines["-"]) == pytest.approx(curve.half_widths(3))
    now = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert ys(now) == pytest.approx([50 * (curve.crossed.high - curve.crossed.low)])
    at_hand = np.interp(np.log(60), np.log(QUERIES), np.log(curve.half_widths(3)))
    assert np.exp(at_hand) == pytest.approx(ys(now)[0], rel=0.02)


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


def test_long_text_is_cut_to_its_room() -> None:
    assert fit("short", 2.0) == "short"
    cut = fit("x" * 200, 1.0)
    assert cut.endswith("…")
    assert text_width(cut) <= 1.0


def conflict(cosine: float = 0.1, layer: int | str = 0) -> dict[str, object]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    return {"step": 1, "layer": layer, "cosine": cosine, "magnitude_similarity": 0.9, **dict.fromkeys(names, 0.5)}
