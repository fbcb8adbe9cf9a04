"""The report: verdicts, what comparisons of systems say, and its pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import BASE, INTERFERENCE, gate_file, measured
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import compare_arms
from unimoe.analysis.drilldown import drilldown_table
from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.pages import page, provenance
from unimoe.analysis.report.systems import systems_headlines
from unimoe.core.errors import DataError
from unimoe.results import EvalResult, write_result
from unimoe.results.folder import Results, load_all_results

Scores = list[EvalResult]


def steady(joint: float, dataset: str = "apidocs", *, seeds: int = 3) -> Scores:
    """rank_only scores .5 to .7 on 40 queries; joint has this share of it, with little noise."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.5, 0.7, 40)
    own, other = (factor * base + rng.normal(0.0, 0.002, (seeds, 40)) for factor in (1.0, joint))
    return measured("rank_only_r8", own, dataset) + measured("joint_r8", other, dataset)


def noisy(dataset: str = "apidocs") -> Scores:
    specialist, joint = simulate(3, 30, 0.015, rng=np.random.default_rng(2))
    return measured("rank_only_r8", specialist, dataset) + measured("joint_r8", joint, dataset)


def loaded(results: Scores) -> Results:
    return Results(Path("nowhere"), results)


def contents_of(results: Scores, registration: Registration | None = None) -> dict[str, Any]:
    return gather(Analysis(loaded(results), registration, iterations=10), [])


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


@pytest.mark.parametrize("results", [noisy(), steady(0.9, seeds=1), [*noisy("a"), *noisy("b")]])
def test_an_undecided_verdict_says_what_it_lacks(results: Scores) -> None:
    (verdict,) = contents_of(results)["verdicts"]
    assert "Would settle it" in dict(verdict.first) or "train two more" in verdict.said.headline


def test_left_out_seeds_and_what_each_result_was_made_with_are_named() -> None:
    extra = make_result("joint_r8", 7, np.linspace(0.5, 0.7, 40), hashes={"checkpoint": "feed", "collection": "c0ffee"})
    paired = [r.model_copy(update={"config": {"paired_seeds": True}}) for r in [*steady(0.9), extra]]
    (verdict,) = contents_of(paired)["verdicts"]
    assert any(name == "Note" and "left out" in text and "joint_r8 seed 7" in text for name, text in verdict.more)
    both = [extra, extra.model_copy(update={"dataset": "b"})]
    facts = list(provenance(loaded([*both, make_result("bm25", None, np.linspace(0.5, 0.7, 40))])))
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


@pytest.mark.parametrize(("p", "said"), [(0.04998, ".04998"), (0.05, ".0500"), (1.0, "1"), (1e-6, "< .0001")])
def test_p_is_said_on_its_side_of_the_level(p: float, said: str) -> None:
    """A significant difference had "p .0500"."""
    results = loaded(systems(alpha=0.05, beta=0.0))
    (tested,) = compare_arms(results, iterations=10)
    (sentence,) = systems_headlines(results, [replace(tested, p_corrected=p)])
    assert f"(p {said} after Holm), and is {'' if p < 0.05 else 'not '}significantly better" in sentence


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
    results = loaded(items)
    said = systems_headlines(results, Analysis(results, iterations=10).tests)
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
    for said in (text, html):
        assert "Verdicts</h2>" not in said
        assert "## Verdicts" not in said
        assert "No gates were registered" not in said


def test_a_broken_gate_file_stops_before_anything_is_written(tmp_path: Path) -> None:
    for result in steady(0.9):
        write_result(tmp_path, result)
    (tmp_path / REGISTERED).write_text("gates: []", encoding="utf-8")
    with pytest.raises(DataError, match=REGISTERED):
        write_report(Analysis(load_all_results(tmp_path), iterations=20))
    assert not (tmp_path / "analysis").exists()


def test_a_tiny_difference_of_a_query_has_no_sign() -> None:
    """It was -0.00 in the list of queries."""
    scores = {"rank_only_r8": [0.5, 0.6] * 4, "joint_r8": [0.5 - 1e-7, 0.6 + 1e-7] * 4}
    analysis = Analysis(loaded([make_result(arm, 0, values) for arm, values in scores.items()]))
    html = page("report.html.j2", gather(analysis, []), [])
    assert "<td>0.00</td>\n<td>0.000</td>" in html
    table = drilldown_table(analysis.cases["reranking.joint_r8", "apidocs"], analysis.judgments[0].gate, "apidocs")
    for said in (html, table.to_markdown()):
        assert not re.search(r"[-+−]0\.00", said)


def test_only_the_reports_own_script_may_run_and_its_data_cannot_end_it() -> None:
    contents = contents_of(noisy("</script><!--<script>\u2028&"))
    html = page("report.html.j2", contents, [])
    data, own = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in policy[1]
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data)["places"] == list(contents["queries"]["places"])
