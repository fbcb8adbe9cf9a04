"""The report and its drill-down into queries."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import BASE, DIFFERENCE, INTERFERENCE, gate_file, measured
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import QueryCase, drill_down, drilldown_table
from unimoe.analysis.gates.definitions import DifferenceGate, Gate, InterferenceGate, Registration, load_gates
from unimoe.analysis.gates.findings import find
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.pages import page, provenance
from unimoe.analysis.report.systems import systems_headlines
from unimoe.results import DrillDown, EvalResult, QueryDetail, drilldown_path, result_path, write_result
from unimoe.results.folder import Results, load_all_results

Scores = list[EvalResult]


def steady(joint: float, dataset: str = "apidocs") -> Scores:
    """rank_only scores .5 to .7 on 40 queries; joint has this share of it, with little noise."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.5, 0.7, 40)
    own, other = (factor * base + rng.normal(0.0, 0.002, (3, 40)) for factor in (1.0, joint))
    return measured("rank_only_r8", own, dataset) + measured("joint_r8", other, dataset)


def contents_of(results: Scores, registration: Registration | None = None) -> dict[str, Any]:
    return gather(Analysis(Results(Path("nowhere"), results), registration, iterations=10), [])


def test_registered_gates_are_told_apart_from_default_ones_and_show_their_own_cutoffs(tmp_path: Path) -> None:
    ni = BASE | {"kind": "non_inferiority", "margin": 0.005, "system": "joint_r8", "baseline": "rank_only_r8"}
    wide = {"datasets": ["a"], "pass_at": 0.10, "fail_below": 0.08, "confidence": 0.8}
    path = gate_file(tmp_path, kill=INTERFERENCE | wide, gone=INTERFERENCE, ni=ni | {"datasets": ["a"]})
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
    about = "Reranking on b: joint_r8 against rank_only_r8, ndcg@10"
    assert [(verdict.said.about, verdict.said.name) for verdict in own[1]] == [(about, "reranking.joint_r8")]
    assert "2 %" not in " ".join(contents["reading"])


def test_left_out_seeds_and_what_each_result_was_made_with_are_named() -> None:
    extra = make_result("joint_r8", 7, np.linspace(0.5, 0.7, 40), hashes={"checkpoint": "feed", "collection": "c0ffee"})
    paired = [r.model_copy(update={"config": {"paired_seeds": True}}) for r in [*steady(0.9), extra]]
    (verdict,) = contents_of(paired)["verdicts"]
    assert any(name == "Note" and "left out" in text and "joint_r8 seed 7" in text for name, text in verdict.more)
    found = [extra, extra.model_copy(update={"dataset": "b"}), make_result("bm25", None, np.linspace(0.5, 0.7, 40))]
    facts = list(provenance(Results(Path("nowhere"), found)))
    assert [text for name, text in facts if name == "joint_r8 seed 7"] == ["checkpoint feed"]
    assert ("reranking/b", "collection c0ffee") in facts
    assert ("reranking/apidocs", "collection c0ffee (joint_r8)") in facts


def systems(*datasets: str, **shifts: float) -> Scores:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.5, 200)
    rows = {arm: base + shift + rng.normal(0.0, 0.1, 200) for arm, shift in shifts.items()}
    untrained = {"checkpoint": "none"}
    return [
        make_result(arm, None, row, dataset=dataset, task="retrieval", identity=untrained)
        for dataset in datasets or ("nfcorpus",)
        for arm, row in rows.items()
    ]


@pytest.mark.parametrize(
    ("items", "sentences"),
    [
        (systems(alpha=0.0), ["On nfcorpus, alpha is the only system: its nDCG@10 is "]),
        (systems(alpha=0.0, beta=0.002), ["and is not significantly better than "]),
        (systems(bm25=0.0, zero_shot=0.1), ["and is significantly better than bm25."]),
        (
            [result.model_copy(update={"config_name": name}) for name in "ab" for result in systems(alpha=0.0)],
            ["a and b share the highest nDCG@10"],
        ),
        (
            [r for r in systems("x", "y", "z", bm25=0.0, minilm=0.08) if (r.config_name, r.dataset) != ("bm25", "z")]
            + systems("w", bm25=0.0),
            ["Highest main metric: bm25 on w; minilm on x, y and z.", "Significant: minilm above bm25 on x and y."],
        ),
    ],
)
def test_what_comparisons_say_of_the_best_systems(items: Scores, sentences: list[str]) -> None:
    results = Results(Path("nowhere"), items)
    said = systems_headlines(results, Analysis(results, iterations=10).all_comparisons)
    assert len(said) == len(sentences)
    for line, words in zip(said, sentences, strict=True):
        assert words in line


def test_a_folder_without_gates_has_a_report_of_its_own(tmp_path: Path) -> None:
    for result in systems(bm25=0.0, minilm=0.01, fusion=0.05):
        write_result(tmp_path, result)
    path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
    text, html = (p.read_text(encoding="utf-8") for p in (path.with_suffix(".md"), path))
    assert text.splitlines()[2].startswith("- On nfcorpus, fusion has the highest nDCG@10")
    assert text.index("figures/scores-retrieval.png") < text.index("## Paired comparisons")
    assert html.index('id="scores-retrieval-') < html.index("Paired comparisons</h2>")
    for words in ("Verdicts</h2>", "## Verdicts", "No gates were registered"):
        assert words not in text + html


def test_a_tiny_difference_of_a_query_has_no_sign() -> None:
    """It was -0.00 in the list of queries."""
    scores = {"rank_only_r8": [0.5, 0.6] * 4, "joint_r8": [0.5 - 1e-7, 0.6 + 1e-7] * 4}
    results = Results(Path("nowhere"), [make_result(arm, 0, values) for arm, values in scores.items()])
    analysis = Analysis(results)
    html = page("report.html.j2", gather(analysis, []), [])
    assert "<td>0.00</td>\n<td>0.000</td>" in html
    table = drilldown_table(analysis.cases["reranking.joint_r8", "apidocs"], analysis.judgments[0].gate, "apidocs")
    for said in (html, table.to_markdown()):
        assert not re.search(r"[-+−]0\.00", said)


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


GATE = InterferenceGate.model_validate(INTERFERENCE)


@pytest.fixture
def drilled_results(tmp_path: Path) -> Results:
    """Two seeds of two arms on four queries, with texts and the ranks of relevant documents."""
    specialist, joint = [[0.9, 0.5, 0.4, 0.6], [0.7, 0.5, 0.4, 0.6]], [[0.3, 0.5, 0.6, 0.6], [0.3, 0.5, 0.4, 0.6]]
    for result in [*measured(GATE.specialist, specialist), *measured(GATE.joint, joint)]:
        ranks = {"rel": (result.seed or 0) + 1 if result.config_name == GATE.specialist else None, "other": 7}
        details = {
            query_id: QueryDetail(text=f"text of {query_id}", relevant={"rel": 2, "other": 1}, ranks=ranks)
            for query_id in result.per_query
        }
        write_result(tmp_path, result, DrillDown(queries=details))
    return load_all_results(tmp_path)


def drilled(results: Results, gate: Gate = GATE) -> tuple[QueryCase, ...]:
    return drill_down(results, gate, find(gate, collect(results, gate)), 200)


def test_the_largest_difference_comes_first_without_ties_and_shares_sum_to_the_value(drilled_results: Results) -> None:
    cases = drilled(drilled_results)
    assert [case.query_id for case in cases] == ["q000", "q002"]
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert [case.share for case in cases] == pytest.approx([0.5 / 2.3, -0.1 / 2.3])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.8, 0.3))
    of_difference = drilled(drilled_results, DifferenceGate.model_validate(DIFFERENCE | {"kind": "superiority"}))
    assert [case.difference for case in of_difference] == pytest.approx([-0.5, 0.1])
    assert (of_difference[0].first, of_difference[0].second) == pytest.approx((0.3, 0.8))
    assert sum(case.share for case in of_difference) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("{", "is damaged or of another version"),
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
