"""Figures as files and as SVG, of scores and of gates."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from scipy.stats import ttest_1samp
from support.figures import SMALL, marked, segments, simulated, texts, words, xs
from support.gates import BASE, gate_file
from support.large_experiments import large_results
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, generate_plots
from unimoe.analysis.figures import Drawing, all_figures, save, to_svg
from unimoe.analysis.figures.scores import score_panels
from unimoe.analysis.figures.style import FONT_SIZE, ONE_COLUMN, TWO_COLUMNS
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.wording import finding_word, interval_text, shown

HOSTILE = r"a$\frac{$_b% & <script>\x{#000000}"


@pytest.fixture(scope="module")
def svgs(drawings: dict[str, Drawing]) -> dict[str, str]:
    return {name: to_svg(drawing.figure, name) for name, drawing in drawings.items()}


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


def test_figures_fit_one_or_two_columns_in_readable_type(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        assert drawing.figure.get_figwidth() in (ONE_COLUMN, TWO_COLUMNS)
        assert min(float(text.get_fontsize()) for text in texts(drawing.figure)) >= FONT_SIZE >= 7


def test_nothing_is_drawn_beyond_the_page(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        drawing.figure.draw_without_rendering()
        drawn, (width, height) = drawing.figure.get_tightbbox(), drawing.figure.get_size_inches()
        assert min(drawn.x0, drawn.y0) >= -0.02, drawing.name
        assert drawn.x1 <= width + 0.02, drawing.name
        assert drawn.y1 <= height + 0.02, drawing.name


def test_captions_say_how_to_read_and_caveats_stand_in_the_figure(drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        assert drawing.caption.endswith(".")
        assert "{" not in drawing.caption
        assert "\n".join(words(drawing.figure)).count("Caveat: smoke run") == 1


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
    own, joint = simulate(2, 20, 0.1, rng=np.random.default_rng(0))
    items = [
        make_result(f"{word}_{HOSTILE}", seed, row, dataset=HOSTILE)
        for word, matrix in (("rank_only", own), ("joint", joint))
        for seed, row in enumerate(matrix)
    ]
    drawn = {drawing.name: drawing for drawing in all_figures(Analysis(Results(tmp_path, items)))}
    assert {"tir-forest", "scores-reranking", "differences-reranking", "power-reranking"} <= drawn.keys()
    for name, drawing in drawn.items():
        found = [element.text or "" for element in ET.fromstring(to_svg(drawing.figure, name)).iter()]
        assert any(HOSTILE[:7] in text or HOSTILE[-7:] in text for text in found), name
        assert save(drawing.figure, tmp_path / name).exists()


def test_one_run_has_the_interval_of_t_over_queries(tmp_path: Path) -> None:
    scores = np.array([0.1, 0.4, 0.8, 0.5])
    score = score_panels(Results(tmp_path, [make_result("bm25", None, scores)]), "reranking")[0].scores["bm25"]
    assert score.ends == pytest.approx(100 * np.array(ttest_1samp(scores, 0.0).confidence_interval(0.95)))


def test_the_overview_has_a_row_per_dataset_and_a_point_per_arm(tmp_path: Path) -> None:
    results = large_results(tmp_path, SMALL, seeds=2)
    drawn = {drawing.name: drawing.figure for drawing in all_figures(Analysis(results))}
    (axes,) = drawn["overview-reranking"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SMALL)
    points = {tuple(xs(line)) for line in axes.lines}
    shown = score_panels(results, "reranking")
    assert points == {tuple(panel.scores[arm].mean for panel in shown) for arm in shown[0].scores}
    assert len(drawn["scores-reranking"].axes) == len(SMALL)


def test_the_forest_shows_what_the_judgments_hold(tmp_path: Path) -> None:
    analysis = Analysis(large_results(tmp_path, SMALL, seeds=3))
    drawing = next(all_figures(analysis))
    assert drawing.leads
    (axes,) = drawing.figure.axes
    rows = [found for item in analysis.judgments for found in item.rows]
    assert marked(axes, "s") == pytest.approx([100 * found.value for found in rows])
    assert marked(axes, "D") == pytest.approx([100 * item.found.value for item in analysis.judgments])
    drawn = [ends for ends in segments(axes) if ends[0] != ends[1]]
    expected = [found.estimate.interval for item in analysis.judgments for found in (*item.rows, item.found)]
    low, high = axes.get_xlim()
    assert drawn == [pytest.approx((max(low, 100 * a), min(high, 100 * b))) for a, b in filter(None, expected)]
    seen = words(drawing.figure)
    for item in analysis.judgments:
        for found in (*item.rows, item.found):
            assert f"{shown(item.gate, found.value).removesuffix(' %')} {interval_text(item.gate, found)}" in seen
            assert any(text.startswith(finding_word(item.gate, found.label)) for text in seen)
    drawing.figure.draw_without_rendering()
    numbers, labels = ([text.get_window_extent() for text in beside.get_yticklabels()] for beside in axes.child_axes)
    assert max(box.x1 for box in numbers) < min(box.x0 for box in labels)
    assert low < min(0.0, *marked(axes, "s"))
    assert high > max(*marked(axes, "s"))


def test_panels_of_gates_on_one_dataset_are_told_apart(tmp_path: Path) -> None:
    """Two panels were both called "full, tasb (S = 3, n = 43)"."""
    equal = BASE | {"kind": "equivalence", "system": "joint_r8", "baseline": "rank_only_r8", "datasets": ["a"]}
    one = equal | {"margin": 0.02}
    path = gate_file(tmp_path, one=one, few=one | {"seeds": [0, 1]}, halved=one | {"metric": "mrr@10"})
    analysis = Analysis(Results(tmp_path, simulated("a", 0.05)), load_gates(path))
    for name in ("power-reranking", "differences-reranking"):
        (figure,) = (drawing.figure for drawing in all_figures(analysis) if drawing.name == name)
        titles = [title.partition(" (")[0] for title in (axes.get_title(loc="left") for axes in figure.axes) if title]
        assert {"a, few", "a, halved", "a, one"} <= set(titles)
        assert len(set(titles)) == len(titles)


def test_systems_without_roles_lead_with_their_scores_and_are_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.6, 80)
    scores = {"alpha": base, "beta": base + rng.normal(0.1, 0.05, 80), "bm25": base + rng.normal(0.0, 0.05, 80)}
    items = [make_result(arm, None, row, identity={"checkpoint": "none"}) for arm, row in scores.items()]
    analysis = Analysis(Results(tmp_path, items), iterations=10)
    drawn = list(all_figures(analysis))
    assert [drawing.name for drawing in drawn] == ["scores-reranking", "comparisons"]
    assert not drawn[0].leads
    (axes,) = drawn[1].figure.axes
    assert marked(axes, "s") == pytest.approx([100 * c.delta for c in analysis.comparisons])
    assert sum(text.endswith(" *") for text in words(drawn[1].figure)) == 2
