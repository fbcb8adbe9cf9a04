"""Figures as files and as SVG, of scores and of gates."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from scipy.stats import ttest_1samp
from support.figures import SMALL, marked, segments, simulated, texts, words, xs
from support.gates import BASE, INTERFERENCE, both, gate_file
from support.large_experiments import large_results
from support.results import make_result, simulate, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, generate_plots, load_all_results
from unimoe.analysis.figures import Drawing, all_figures, save, to_svg
from unimoe.analysis.figures.gates import gate_groups
from unimoe.analysis.figures.scores import score_panels
from unimoe.analysis.figures.style import FONT_SIZE, ONE_COLUMN, TWO_COLUMNS, looks, panels
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.wording import finding_word, interval_text, shown
from unimoe.analysis.statistics.estimates import Linear, estimate
from unimoe.analysis.statistics.variance import moments

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


def test_without_logs_there_is_no_figure_of_logs(tmp_path: Path) -> None:
    write_experiment(tmp_path, logs=False)
    names = [drawing.name for drawing in all_figures(Analysis(load_all_results(tmp_path)))]
    assert names
    assert not {"loss-curves", "gradient-conflicts", "conflict-rate", "norm-ratio"}.intersection(names)


def test_one_arm_with_one_query_has_a_bar_without_an_interval(tmp_path: Path) -> None:
    results = Results(tmp_path, [make_result("joint_r8", 0, [0.5])])
    assert [drawing.name for drawing in all_figures(Analysis(results))] == ["scores-reranking"]
    assert score_panels(results, "reranking")[0].scores["joint_r8"].ends == (50.0, 50.0)


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


@pytest.mark.filterwarnings("ignore:Glyph 1")
def test_a_control_character_does_not_break_the_page() -> None:
    figure, _ = panels(["one\x01two"], "x")
    assert "one\ufffdtwo" in [element.text for element in ET.fromstring(to_svg(figure, "f")).iter()]


def test_bars_are_means_lines_are_intervals_and_dots_are_seeds(tmp_path: Path) -> None:
    matrix = np.array([[0.1, 0.3], [0.3, 0.5], [0.4, 0.8]])
    results = Results(tmp_path, [make_result("joint_r8", seed, row) for seed, row in enumerate(matrix)])
    (axes,) = next(all_figures(Analysis(results))).figure.axes
    interval = estimate(moments([[100 * matrix]], [(0,)]), Linear(np.ones((1, 1)))).interval
    assert axes.patches[0].get_width() == pytest.approx(40.0)  # type: ignore[attr-defined]
    assert xs(axes.lines[0]) == pytest.approx([20.0, 40.0, 60.0])
    drawn = axes.collections[0].get_segments()[0]  # type: ignore[attr-defined]
    assert drawn[:, 0] == pytest.approx(interval)


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


def test_an_arm_looks_the_same_in_every_figure_and_unlike_the_others() -> None:
    arms = ["bm25", "zero_shot", "rank_only_r8", "rank_only_r16", "emb_only_r8", "joint_r8", "ours", "theirs"]
    seen = looks(arms)
    assert looks(reversed(arms)) == seen
    assert len({look.colour for look in seen.values()}) == len(arms)
    without = {replace(seen[arm], colour=(0.0, 0.0, 0.0)) for arm in arms if arm != "rank_only_r16"}
    assert len(without) == len(arms) - 1  # told apart in grey too
    assert len({look.colour for look in looks(f"system-{i}" for i in range(9)).values()}) == 9


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


def test_each_gate_has_its_own_cutoffs(tmp_path: Path) -> None:
    held = [r for dataset, tir in (("a", 0.05), ("b", 0.0)) for r in simulated(dataset, tir)]
    wide = INTERFERENCE | {"datasets": ["a"], "pass_at": 0.1, "fail_below": 0.08, "confidence": 0.8}
    narrow = INTERFERENCE | {"datasets": ["b"], "pass_at": 0.03, "fail_below": 0.03}
    equal = BASE | {"kind": "equivalence", "margin": 0.02, "datasets": ["a"]}
    equal |= {"system": "joint_r8", "baseline": "rank_only_r8"}
    analysis = Analysis(Results(tmp_path, held), load_gates(gate_file(tmp_path, wide=wide, narrow=narrow, equal=equal)))
    drawn = {drawing.name: drawing for drawing in all_figures(analysis)}
    groups = gate_groups(analysis.judgments, looks(analysis.results))
    names = {item.name: group.cutoffs for item, group in zip(analysis.judgments, groups, strict=True)}
    assert names["wide"] == pytest.approx([8.0, 10.0])
    assert names["narrow"] == pytest.approx([3.0])
    assert names["equal"] == pytest.approx([-2.0, 2.0])
    regions = {"regions: FAIL below 8 % | MARGINAL | PASS from 10 %", "regions: FAIL below 3 % | PASS from 3 %"}
    assert regions <= set(words(drawn["tir-forest"].figure))
    seen = words(drawn["difference-forest"].figure)
    assert "regions: FAIL below -2 points | PASS | FAIL above 2 points" in seen
    assert drawn["difference-forest"].leads


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


def test_an_arrow_says_that_an_interval_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    datasets = {"large": 2_000, "larger": 3_000, "tiny": 7}
    held = [result for name, n in datasets.items() for result in simulated(name, 0.02, n, rng)]
    (axes,) = next(all_figures(Analysis(Results(tmp_path, held)))).figure.axes
    arrows = [line for line in axes.lines if line.get_marker() in ("<", ">")]
    assert arrows
    assert {xs(line)[0] for line in arrows} <= set(axes.get_xlim())


def test_one_seed_is_drawn_and_decides_and_plans_nothing(tmp_path: Path) -> None:
    rows = np.linspace(0.3, 0.8, 12), np.linspace(0.2, 0.8, 12)
    items = [make_result(arm, 0, row) for arm, row in zip(("rank_only_r8", "joint_r8"), rows, strict=True)]
    analysis = Analysis(Results(tmp_path, items))
    drawn = {drawing.name: drawing.figure for drawing in all_figures(analysis)}
    assert set(drawn) == {"tir-forest", "scores-reranking", "differences-reranking"}
    assert "UNDECIDED" in words(drawn["tir-forest"])


def test_a_value_that_cannot_be_computed_has_no_point(tmp_path: Path) -> None:
    analysis = Analysis(both([[0.0] * 12] * 2, [[0.1] * 6 + [0.0] * 6] * 2))
    figure = next(all_figures(analysis)).figure
    assert "not computable" in words(figure)
    assert marked(figure.axes[0], "s") == []


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


@pytest.mark.parametrize(("systems", "datasets"), [(1, 1), (9, 3)])
def test_long_names_stay_on_the_page(tmp_path: Path, systems: int, datasets: int) -> None:
    rng, path = np.random.default_rng(0), f"/data/of/somebody/{'long/' * 9}"
    items = [
        make_result(f"{path}system-{i}", None, rng.random(20), dataset=f"{path}collection-{j}")
        for i in range(systems)
        for j in range(datasets)
    ]
    for drawing in all_figures(Analysis(Results(tmp_path, items))):
        drawing.figure.draw_without_rendering()
        drawn, (width, height) = drawing.figure.get_tightbbox(), drawing.figure.get_size_inches()
        assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= -0.02
        seen = "\n".join(words(drawing.figure))
        assert all(f"system-{i}" in seen for i in range(systems))
        assert all(f"collection-{j}" in seen for j in range(datasets))


def test_intervals_beside_a_corrected_p_say_that_they_are_not_corrected(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).random((2, 30))
    items = [make_result(arm, None, row) for arm, row in zip(("alpha", "beta"), scores, strict=True)]
    drawn = {drawing.name: drawing.figure for drawing in all_figures(Analysis(Results(tmp_path, items), iterations=10))}
    assert "intervals of 95 % are not corrected, p is, by Holm" in "\n".join(words(drawn["comparisons"]))
