"""Figures as files and as SVG, and what they show of gates, scores and training."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.stats import ttest_1samp
from support.gates import BASE, gate_file, measured
from support.results import large_results, make_result, simulate, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, generate_plots, load_all_results
from unimoe.analysis.figures import Drawing, all_figures, to_svg
from unimoe.analysis.figures.style import looks
from unimoe.analysis.figures.training import conflict_grid, loss_figure
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.wording import finding_word, interval_text, shown
from unimoe.core.errors import DataError
from unimoe.core.io import append_jsonl
from unimoe.results.logs import Conflict


def record(step: int, layer: int, cosine: float | None = 0.1) -> dict[str, Any]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    return {"step": step, "layer": layer, "cosine": cosine, **dict.fromkeys((*names, "magnitude_similarity"), 0.5)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("figures") / "run"
    write_experiment(folder, caveats=["smoke run"])
    log = folder / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    for step, layer in product((10, 20, 30), range(4)):
        append_jsonl(log, record(step, layer, 0.1 * (layer - 1.5)))
    return load_all_results(folder)


def drawn(analysis: Analysis) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in all_figures(analysis)}


def words(figure: Figure) -> list[str]:
    texts = [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]
    return [text.get_text() for text in texts if text.get_text() and text.get_visible()]


def marked(axes: Axes, marker: str) -> list[float]:
    return [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == marker]


def black_lines(axes: Axes) -> list[tuple[float, float]]:
    """Ends of the horizontal lines in black: the intervals of a forest."""
    held = [artist for artist in axes.collections if isinstance(artist, LineCollection)]
    black = [artist for artist in held if not np.asarray(artist.get_color())[0, :3].any()]
    ends = [np.asarray(segment) for artist in black for segment in artist.get_segments()]
    return [(float(one[0, 0]), float(one[1, 0])) for one in ends]


def test_every_figure_is_drawn_as_png_and_pdf(results: Results, tmp_path: Path) -> None:
    paths = generate_plots(results, tmp_path)
    assert [path.stem for path in paths] == [
        "tir-forest",
        *("scores-reranking", "differences-reranking", "power-reranking"),
        *("scores-embedding", "differences-embedding", "power-embedding"),
        *("loss-curves", "gradient-conflicts"),
    ]
    for path in paths:
        assert matplotlib.image.imread(path).std() > 0.01
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_svgs_share_a_page_and_its_colours_without_sharing_ids_or_styles(results: Results) -> None:
    ids: list[str] = []
    for name, drawing in drawn(Analysis(results)).items():
        text = to_svg(drawing.figure, name)
        root = ET.fromstring(text)
        its_ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        references = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
        assert references <= set(its_ids)
        assert not [element for element in root.iter() if element.tag.endswith(("style", "metadata"))]
        assert "#000000" not in text
        assert root.attrib["fill"] == "currentColor"
        ids += its_ids
    assert len(ids) == len(set(ids))


def test_scores_have_a_row_per_dataset_with_the_interval_of_t_where_there_is_one_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = {dataset: rng.uniform(size=(2, 9)) for dataset in ("one", "two")}
    arms = ("bm25", "zero_shot")
    items = [make_result(arm, None, scores[d][i], dataset=d) for d in scores for i, arm in enumerate(arms)]
    items = [item for item in items if (item.dataset, item.config_name) != ("two", "zero_shot")]
    (axes,) = drawn(Analysis(Results(tmp_path, items)))["scores-reranking"].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one (9)", "two (9)"]
    assert marked(axes, "s") == pytest.approx([100 * scores[d][0].mean() for d in scores])
    assert marked(axes, "D") == pytest.approx([100 * scores["one"][1].mean()])
    ends = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    expected = 100 * np.array(ttest_1samp(scores["one"][0], 0.0).confidence_interval(0.95))
    assert np.asarray(ends[0].get_segments()[0])[:, 0] == pytest.approx(expected)


def test_the_forest_shows_what_the_judgments_hold(tmp_path: Path) -> None:
    analysis = Analysis(large_results(tmp_path, {"quora": 60, "scifact": 30, "trec-covid": 8}, seeds=3))
    drawing = next(all_figures(analysis))
    assert drawing.leads
    (axes,) = drawing.figure.axes
    rows = [(item, found) for item in analysis.judgments for found in (*item.rows, item.found)]
    single = [found for item in analysis.judgments for found in item.rows]
    assert marked(axes, "s") == pytest.approx([100 * found.value for found in single])
    assert marked(axes, "D") == pytest.approx([100 * item.found.value for item in analysis.judgments])
    low, high = axes.get_xlim()
    intervals = [found.estimate.interval for _, found in rows if found.estimate.interval]
    clipped = [pytest.approx((max(low, 100 * a), min(high, 100 * b))) for a, b in intervals]
    assert [ends for ends in black_lines(axes) if ends[0] != ends[1]] == clipped
    seen = words(drawing.figure)
    for item, found in rows:
        assert f"{shown(item.gate, found.value).removesuffix(' %')} {interval_text(item.gate, found)}" in seen
        assert any(text.startswith(finding_word(item.gate, found.label)) for text in seen)
    drawing.figure.draw_without_rendering()
    numbers, labels = ([text.get_window_extent() for text in beside.get_yticklabels()] for beside in axes.child_axes)
    assert max(box.x1 for box in numbers) < min(box.x0 for box in labels)
    assert low < min(0.0, *marked(axes, "s"))
    assert high > max(*marked(axes, "s"))


def test_panels_of_gates_on_one_dataset_are_told_apart(tmp_path: Path) -> None:
    """Two panels were both called "full, tasb (S = 3, n = 43)"."""
    own, joint = simulate(3, 200, 0.05, rng=np.random.default_rng(4))
    one = BASE | {"kind": "equivalence", "system": "joint_r8", "baseline": "rank_only_r8", "margin": 0.02}
    path = gate_file(tmp_path, one=one, few=one | {"seeds": [0, 1]}, halved=one | {"metric": "mrr@10"})
    items = [*measured("rank_only_r8", own), *measured("joint_r8", joint)]
    found = drawn(Analysis(Results(tmp_path, items), load_gates(path)))
    for name in ("power-reranking", "differences-reranking"):
        titles = [axes.get_title(loc="left").partition(" (")[0] for axes in found[name].figure.axes]
        assert {"apidocs, few", "apidocs, halved", "apidocs, one"} <= set(titles)
        assert len(set(titles)) == len(titles)


def test_systems_without_roles_lead_with_their_scores_and_are_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.6, 80)
    scores = {"alpha": base, "beta": base + rng.normal(0.1, 0.05, 80), "bm25": base + rng.normal(0.0, 0.05, 80)}
    items = [make_result(arm, None, row, identity={"checkpoint": "none"}) for arm, row in scores.items()]
    analysis = Analysis(Results(tmp_path, items), iterations=10)
    found = drawn(analysis)
    assert list(found) == ["scores-reranking", "comparisons", "critical-difference"]
    assert not found["scores-reranking"].leads
    (axes,) = found["comparisons"].figure.axes
    assert marked(axes, "s") == pytest.approx([100 * c.delta for c in analysis.comparisons])
    assert sum(text.endswith(" *") for text in words(found["comparisons"].figure)) == 2
    (axes,) = found["critical-difference"].figure.axes
    (bar,) = axes.lines
    assert bar.get_xdata() == pytest.approx(sorted(100 * scores[arm].mean() for arm in ("alpha", "bm25")))
    names = [text.partition("  ")[0] for text in words(found["critical-difference"].figure) if "  " in text]
    assert sorted(names) == sorted(scores)


def test_losses_are_drawn_by_part_and_a_log_of_one_step_is_a_point() -> None:
    logs: Any = {
        ("joint_r8", 0): ({"step": 1, "loss": 3.0, "ranking_loss": 1.0, "embedding_loss": 2.0},),
        ("rank_only_r8", 0): ({"step": 1, "loss": 1.0, "task": "rank_only"},),
        ("odd", 0): ({"step": 1, "loss": 1.0},),
    }
    figure = loss_figure(logs, looks(arm for arm, _ in logs))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ranking loss", "joint loss", "embedding loss"]
    assert {line.get_marker() for line in figure.axes[0].lines} == {"v", "o"}


def test_conflicts_are_means_over_seeds_and_unknown_where_no_cosine_was_measured() -> None:
    records = [record(1, 0, -0.1), record(1, 0, 0.3), record(1, 1, None), record(11, 1, 0.2)]
    steps, layers, values = conflict_grid([Conflict.model_validate(one) for one in records], "cosine")
    assert (steps, layers) == ([1, 11], [0, 1])
    assert values == pytest.approx(np.array([[0.1, np.nan], [np.nan, 0.2]]), nan_ok=True)


@pytest.mark.parametrize("line", ["{", '{"step": "1"}'])
def test_a_bad_line_of_conflicts_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    append_jsonl(path, record(1, 0))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"gradient_conflicts\.jsonl:2: not a record of gradient conflicts"):
        list(all_figures(Analysis(Results(tmp_path, [make_result("joint_r8", 0, [0.5])]))))
