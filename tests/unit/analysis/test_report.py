"""Figures of gates, scores and training, the report that holds them, and its drill-down into queries."""

from __future__ import annotations

import base64
import hashlib
import json
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
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from scipy.stats import ttest_1samp
from support import results as made

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import generate_plots
from unimoe.analysis.drilldown import QueryCase, drill_down
from unimoe.analysis.figures import Drawing, all_figures, to_svg
from unimoe.analysis.figures.training import conflict_grid
from unimoe.analysis.gates.definitions import DifferenceGate, Gate, InterferenceGate, Registration, load_gates
from unimoe.analysis.gates.findings import evaluate_gate
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.gates.wording import text_of
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.pages import page, provenance
from unimoe.analysis.report.systems import systems_headlines
from unimoe.core.errors import DataError
from unimoe.core.io import append_jsonl
from unimoe.results import DrillDown, EvalResult, QueryDetail, drilldown_path, result_path, write_result
from unimoe.results.folder import Results, load_all_results
from unimoe.results.logs import Conflict


def record(step: int, layer: int, cosine: float | None = 0.1) -> dict[str, Any]:
    names = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "norm_rank", "norm_embed")
    return {"step": step, "layer": layer, "cosine": cosine, **dict.fromkeys((*names, "magnitude_similarity"), 0.5)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("figures") / "run"
    made.write_experiment(folder, arms=("rank_only_r8", "joint_r8"), caveats=["smoke run"])
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
        *("differences-reranking", "power-reranking", "scores-reranking"),
        *("scores-embedding", "loss-curves", "gradient-conflicts"),
    ]
    for path in paths:
        assert matplotlib.image.imread(path).std() > 0.01
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("mark", ["\u202e", "\u2067", "\u200f"])
def test_a_name_that_turns_text_leaves_the_numbers_of_figures_as_they_are(tmp_path: Path, mark: str) -> None:
    """57.47 behind such a name was drawn as 74.75, in the tables it was right."""
    scores = np.random.default_rng(3).uniform(size=(3, 30))
    shown = []
    for turned in (mark, "\ufffd"):
        named = {f"{turned}arm_{i}": row for i, row in enumerate(scores)}
        items = [made.make_result(arm, None, row, dataset=f"{turned}set") for arm, row in named.items()]
        found = generate_plots(made.results_of(*items), tmp_path / f"{ord(turned)}")
        assert {"critical-difference", "comparisons"} <= {path.stem for path in found}
        shown.append([path.read_bytes() for path in sorted(found)])
    assert shown[0] == shown[1]


def test_svgs_share_a_page_and_its_colours_without_sharing_ids_or_styles(results: Results) -> None:
    ids: list[str] = []
    found = drawn(Analysis(results))
    curves = [np.asarray(line.get_ydata()) for line in found["loss-curves"].figure.axes[0].lines]
    assert curves[3] == pytest.approx(np.mean(curves[:3], axis=0)), "the curves of three seeds, and their mean"
    for name, drawing in found.items():
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


def test_scores_have_a_row_per_dataset_with_the_interval_of_t_where_there_is_one_run() -> None:
    rng = np.random.default_rng(0)
    scores = {dataset: rng.uniform(size=(2, 9)) for dataset in ("one", "two")}
    arms = ("bm25", "zero_shot")
    items = [made.make_result(arm, None, scores[d][i], dataset=d) for d in scores for i, arm in enumerate(arms)]
    items = [item for item in items if (item.dataset, item.config_name) != ("two", "zero_shot")]
    (axes,) = drawn(Analysis(made.results_of(*items)))["scores-reranking"].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one (9)", "two (9)"]
    assert marked(axes, "s") == pytest.approx([100 * scores[d][0].mean() for d in scores])
    assert marked(axes, "D") == pytest.approx([100 * scores["one"][1].mean()])
    ends = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    expected = 100 * np.array(ttest_1samp(scores["one"][0], 0.0).confidence_interval(0.95))
    assert np.asarray(ends[0].get_segments()[0])[:, 0] == pytest.approx(expected)


def test_the_forest_shows_what_the_judgments_hold(tmp_path: Path) -> None:
    analysis = Analysis(made.large_results(tmp_path, {"quora": 60, "scifact": 30, "trec-covid": 8}, seeds=3))
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
        of = text_of(item.gate, found)
        assert f"{of.value.removesuffix(' %')} {of.interval}" in seen
        assert any(text.startswith(of.word) for text in seen)
    drawing.figure.draw_without_rendering()
    numbers, labels = ([text.get_window_extent() for text in beside.get_yticklabels()] for beside in axes.child_axes)
    assert max(box.x1 for box in numbers) < min(box.x0 for box in labels)
    assert low < min(0.0, *marked(axes, "s"))
    assert high > max(*marked(axes, "s"))


def test_panels_of_gates_on_one_dataset_are_told_apart(tmp_path: Path) -> None:
    """Two panels were both called "full, tasb (S = 3, n = 43)"."""
    own, joint = made.simulate(3, 200, 0.05, rng=np.random.default_rng(4))
    one = made.BASE | {"kind": "equivalence", "system": "joint_r8", "baseline": "rank_only_r8", "margin": 0.02}
    wide = one | {"margin": 0.5}
    path = made.gate_file(tmp_path, one=one, few=one | {"seeds": [0, 1]}, halved=one | {"metric": "mrr@10"}, wide=wide)
    items = [*made.measured("rank_only_r8", own), *made.measured("joint_r8", joint)]
    found = drawn(Analysis(made.results_of(*items), load_gates(path)))
    for name in ("power-reranking", "differences-reranking"):
        titles = [axes.get_title(loc="left").partition(" (")[0] for axes in found[name].figure.axes]
        assert {"apidocs, few", "apidocs, halved", "apidocs, one"} <= set(titles)
        assert len(set(titles)) == len(titles)
    for axes in found["power-reranking"].figure.axes:  # the distance to the nearest cutoff, however far
        assert max(np.max(line.get_ydata()) for line in axes.lines) < axes.get_ylim()[1]


def test_letters_of_no_font_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(fontManager, "ttflist", [font for font in fontManager.ttflist if font.name == "DejaVu Sans"])
    generate_plots(made.results_of(*systems(질의=0.0, 응답=0.1)), tmp_path)
    assert capsys.readouterr().err.count("letters of no font") == 1


def test_systems_without_roles_lead_with_their_differences_and_scores_come_later() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.6, 80)
    scores = {"alpha": base, "beta": base + rng.normal(0.1, 0.05, 80), "bm25": base + rng.normal(0.0, 0.05, 80)}
    items = [made.make_result(arm, None, row, identity={"checkpoint": "none"}) for arm, row in scores.items()]
    analysis = Analysis(made.results_of(*items), iterations=10)
    found = drawn(analysis)
    assert list(found) == ["comparisons", "critical-difference", "scores-reranking"]
    assert [drawing.leads for drawing in found.values()] == [True, False, False]
    (axes,) = found["comparisons"].figure.axes
    assert marked(axes, "s") == pytest.approx([100 * c.delta for c in analysis.comparisons])
    assert sum(text.endswith(" *") for text in words(found["comparisons"].figure)) == 2
    (axes,) = found["critical-difference"].figure.axes
    (bar,) = axes.lines
    assert bar.get_xdata() == pytest.approx(sorted(100 * scores[arm].mean() for arm in ("alpha", "bm25")))
    names = [text.partition("  ")[0] for text in words(found["critical-difference"].figure) if "  " in text]
    assert sorted(names) == sorted(scores)


def test_conflicts_are_means_over_seeds_and_unknown_where_no_cosine_was_measured() -> None:
    records = [record(1, 0, -0.1), record(1, 0, 0.3), record(1, 1, None), record(11, 1, 0.2)]
    steps, layers, values = conflict_grid([Conflict.model_validate(one) for one in records], "cosine")
    assert (steps, layers) == ([1, 11], [0, 1])
    assert values == pytest.approx(np.array([[0.1, np.nan], [np.nan, 0.2]]), nan_ok=True)


def test_a_bad_line_of_conflicts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "joint_r8" / "seed_0" / "logs" / "gradient_conflicts.jsonl"
    append_jsonl(path, record(1, 0))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": "1"}\n')
    with pytest.raises(DataError, match=r"gradient_conflicts\.jsonl:2: not a record of gradient conflicts"):
        list(all_figures(Analysis(Results(tmp_path, [made.make_result("joint_r8", 0, [0.5])]))))


Scores = list[EvalResult]


def steady(joint: float, dataset: str = "apidocs") -> Scores:
    """rank_only scores .5 to .7 on 40 queries; joint has this share of it, with little noise."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.5, 0.7, 40)
    own, other = (factor * base + rng.normal(0.0, 0.002, (3, 40)) for factor in (1.0, joint))
    return made.measured("rank_only_r8", own, dataset) + made.measured("joint_r8", other, dataset)


def contents_of(results: Scores, registration: Registration | None = None) -> dict[str, Any]:
    return gather(Analysis(made.results_of(*results), registration, iterations=10), [])


def test_registered_gates_are_told_apart_from_default_ones_and_show_their_own_cutoffs(tmp_path: Path) -> None:
    ni = made.BASE | {"kind": "non_inferiority", "margin": 0.005, "system": "joint_r8", "baseline": "rank_only_r8"}
    wide = {"datasets": ["a"], "pass_at": 0.10, "fail_below": 0.08, "confidence": 0.8}
    path = made.gate_file(tmp_path, kill=made.INTERFERENCE | wide, gone=made.INTERFERENCE, ni=ni | {"datasets": ["a"]})
    contents = contents_of([*steady(0.88, "a"), *steady(0.9, "b")], load_gates(path))
    registered, own = contents["headlines"]
    assert registered[0] == "Registered gates"
    found = {verdict.said.name: (verdict.said.finding, dict(verdict.more)["Asked"]) for verdict in registered[1]}
    assert found == {
        "gone": ("NOT JUDGED", "PASS from 2 %, FAIL below 1 %, with confidence 0.9"),
        "kill": ("INTERFERENCE", "PASS from 10 %, FAIL below 8 %, with confidence 0.8"),
        "ni": ("WORSE", "joint_r8 is not worse than rank_only_r8 by more than 0.5 points, with confidence 0.9"),
    }
    assert own[0].startswith("Not registered")
    about = "Reranking on b: joint_r8 against rank_only_r8, nDCG@10"
    assert [(verdict.said.about, verdict.said.name) for verdict in own[1]] == [(about, "reranking.joint_r8")]
    assert "2 %" not in " ".join(contents["reading"])


def test_left_out_seeds_and_what_each_result_was_made_with_are_named() -> None:
    extra = made.make_result(
        "joint_r8", 7, np.linspace(0.5, 0.7, 40), hashes={"checkpoint": "feed", "collection": "c0ffee"}
    )
    paired = [r.model_copy(update={"config": {"paired_seeds": True}}) for r in [*steady(0.9), extra]]
    (verdict,) = contents_of(paired)["verdicts"]
    assert any(name == "Note" and "left out" in text and "joint_r8 seed 7" in text for name, text in verdict.more)
    found = [
        extra,
        extra.model_copy(update={"dataset": "b"}),
        made.make_result("bm25", None, np.linspace(0.5, 0.7, 40)),
    ]
    facts = list(provenance(made.results_of(*found)))
    assert [text for name, text in facts if name == "joint_r8 seed 7"] == ["checkpoint feed"]
    assert ("reranking/b", "collection c0ffee") in facts
    assert ("reranking/apidocs", "collection c0ffee (joint_r8)") in facts


def systems(*datasets: str, **shifts: float) -> Scores:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.5, 200)
    rows = {arm: base + shift + rng.normal(0.0, 0.1, 200) for arm, shift in shifts.items()}
    untrained = {"checkpoint": "none"}
    return [
        made.make_result(arm, None, row, dataset=dataset, task="retrieval", identity=untrained)
        for dataset in datasets or ("nfcorpus",)
        for arm, row in rows.items()
    ]


@pytest.mark.parametrize(
    ("items", "sentences"),
    [
        (systems(alpha=0.0), ["On nfcorpus, alpha is the only system: its nDCG@10 is "]),
        (systems(alpha=0.0, beta=0.002), ["and is not significantly better than "]),
        ([made.make_result(arm, None, [mean]) for arm, mean in (("a", 0.5), ("b", 0.4))], ["and a test needs 6)."]),
        (systems(bm25=0.0, zero_shot=0.1), ["and is significantly better than bm25."]),
        (
            [
                made.make_result(arm, seed, np.linspace(0.2, 0.4, 20) + shift, paired_seeds=True)
                for arm, seed, shift in (("a", 0, 1.0), ("a", 1, 0.0), ("a", 2, 0.01), ("b", 1, 0.1), ("b", 2, 0.11))
            ],
            ["a has the highest nDCG@10 (63.67), 10.0 points by the seeds that both have below b "],
        ),
        ([made.make_result(arm, None, [0.5] * 9) for arm in "ab"], ["a and b share the highest nDCG@10"]),
        (
            [r for r in systems("x", "y", "z", bm25=0.0, minilm=0.08) if (r.config_name, r.dataset) != ("bm25", "z")]
            + systems("w", bm25=0.0),
            ["Highest main metric: bm25 on w; minilm on x, y and z.", "Significant: minilm above bm25 (on x and y)."],
        ),
    ],
)
def test_what_comparisons_say_of_the_best_systems(items: Scores, sentences: list[str]) -> None:
    results = made.results_of(*items)
    said = systems_headlines(results, Analysis(results, iterations=10).all_comparisons)
    assert len(said) == len(sentences)
    for line, words in zip(said, sentences, strict=True):
        assert words in line


def test_a_headline_names_the_dataset_that_carries_an_average() -> None:
    """Three datasets without a difference, and one with a large one: the average is significant by that alone."""
    rng, items = np.random.default_rng(5), []
    for dataset, gain in {"fiqa": 0.3, "scifact": 0.0, "arguana": 0.0, "cqadupstack-gis": 0.0}.items():
        base = rng.uniform(0.2, 0.6, 200)
        noise = rng.normal(0.0, 0.1, 200)
        scores = {"bm25": base, "fusion": base + gain + noise - noise.mean()}
        items += [made.make_result(name, None, row, dataset=dataset) for name, row in scores.items()]
    results = made.results_of(*items)
    (line,) = systems_headlines(results, Analysis(results, iterations=10).all_comparisons)[:1]
    assert line.endswith("and is significantly better than bm25; without fiqa it is not significant.")
    even = [r.model_copy(update={"dataset": "x" + r.dataset}) for r in items if r.dataset == "fiqa"]
    results = made.results_of(*[r for r in items if r.dataset == "fiqa"], *even)
    (line,) = systems_headlines(results, Analysis(results, iterations=10).all_comparisons)[:1]
    assert line.endswith("and is significantly better than bm25."), "each alone shows it"


def test_a_folder_without_gates_has_a_report_of_its_own(tmp_path: Path) -> None:
    for result in systems(bm25=0.0, minilm=0.01, fusion=0.05):
        write_result(tmp_path, result)
    path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
    text, html = (p.read_text(encoding="utf-8") for p in (path.with_suffix(".md"), path))
    assert text.splitlines()[2].startswith("- On nfcorpus, fusion has the highest nDCG@10")
    places = [text.index(f"figures/{name}.png") for name in ("comparisons", "scores-retrieval")]
    assert places[0] < text.index("## Paired comparisons") < places[1]
    assert html.index('id="comparisons-') < html.index("Paired comparisons</h2>") < html.index('id="scores-retrieval-')
    for words in ("Verdicts</h2>", "## Verdicts", "No gates were registered"):
        assert words not in text + html


def test_only_the_reports_own_script_may_run_and_its_data_cannot_end_it() -> None:
    contents = contents_of(steady(0.9, "</script><!--<script>\u2028&"))
    html = page("report.html.j2", contents, [])
    data, own = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in policy[1]
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data)["places"] == list(contents["queries"]["places"])


GATE = InterferenceGate.model_validate(made.INTERFERENCE)


@pytest.fixture
def drilled_results(tmp_path: Path) -> Results:
    """Two seeds of two arms on four queries, with texts and the ranks of relevant documents."""
    specialist, joint = [[0.9, 0.5, 0.4, 0.6], [0.7, 0.5, 0.4, 0.6]], [[0.3, 0.5, 0.6, 0.6], [0.3, 0.5, 0.4, 0.6]]
    for result in [*made.measured(GATE.specialist, specialist), *made.measured(GATE.joint, joint)]:
        ranks = {"rel": (result.seed or 0) + 1 if result.config_name == GATE.specialist else None, "other": 7}
        details = {
            query_id: QueryDetail(text=f"text of {query_id}", relevant={"rel": 2, "other": 1}, ranks=ranks)
            for query_id in result.per_query
        }
        write_result(tmp_path, result, DrillDown(queries=details))
    return load_all_results(tmp_path)


def drilled(results: Results, gate: Gate = GATE) -> tuple[QueryCase, ...]:
    return drill_down(results, gate, evaluate_gate(gate, collect(results, gate)), 200)


def test_the_largest_difference_comes_first_without_ties_and_shares_sum_to_the_value(drilled_results: Results) -> None:
    cases = drilled(drilled_results)
    assert [case.query_id for case in cases] == ["q000", "q002"]
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert [case.share for case in cases] == pytest.approx([0.5 / 2.3, -0.1 / 2.3])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.8, 0.3))
    of_difference = drilled(drilled_results, DifferenceGate.model_validate(made.DIFFERENCE | {"kind": "superiority"}))
    assert [case.difference for case in of_difference] == pytest.approx([-0.5, 0.1])
    assert (of_difference[0].first, of_difference[0].second) == pytest.approx((0.3, 0.8))
    assert sum(case.share for case in of_difference) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ('{"schema_version": 1, "queries": {}}', "which its result holds; delete both, and evaluate again"),
    ],
)
def test_a_bad_sidecar_is_named_and_the_rest_is_shown(drilled_results: Results, text: str | None, words: str) -> None:
    path = drilldown_path(result_path(drilled_results.output_dir, GATE.joint, 1, "reranking", "apidocs"))
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    cases = drilled(drilled_results)
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert cases[0].text == "text of q000"
    assert cases[0].first_ranks["rel"] == (1, 2)
    assert cases[0].second_ranks == {}  # a rank of one seed only would pass for "not ranked" under the other
    (problem,) = cases[0].unread
    assert str(path) in problem
    assert words in problem
