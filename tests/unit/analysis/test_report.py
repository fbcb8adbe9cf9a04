"""The report: headlines, verdicts, systems, and its pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.gates import BASE, INTERFERENCE, gate_file
from support.reports import UNUSUAL, Scores, contents_of, loaded, noisy, steady
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.drilldown import drilldown_table
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.analysis.gates.wording import action, finding_word, headline
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.pages import html_page, provenance
from unimoe.analysis.report.systems import systems_headlines
from unimoe.core.errors import DataError
from unimoe.results import write_result
from unimoe.results.folder import Results, load_all_results


class TestHeadlines:
    def test_headline_and_action_are_those_of_the_judgment(self) -> None:
        for share in (0.9, 1.0, 1.1, 0.985):
            analysis = Analysis(loaded(steady(share)))
            (verdict,), (item,) = gather(analysis, []).verdicts, analysis.judgments
            card = verdict.said
            assert dict(verdict.first)["Do"] == action(item)
            assert card.headline == headline(item)
            assert (card.finding, card.label) == (
                finding_word(item.gate, item.label),
                f"gate: {item.verdict}, {action(item)}",
            )
            assert card.label.endswith(action(item))

    def test_registered_gates_are_told_apart_from_the_rules_own(self, tmp_path: Path) -> None:
        registration = load_gates(gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["a"]}, gone=INTERFERENCE))
        contents = contents_of([*steady(0.9, "a"), *steady(0.9, "b")], registration)
        registered, own = contents.headlines
        assert registered[0] == "Registered gates"
        assert {verdict.said.finding for verdict in registered[1]} == {"INTERFERENCE", "NOT JUDGED"}
        assert own[0].startswith("Not registered")
        about = "Reranking on b: joint_r8 against rank_only_r8, ndcg@10"
        assert [(verdict.said.about, verdict.said.name) for verdict in own[1]] == [(about, "reranking.joint_r8")]


class TestVerdicts:
    def test_what_gates_ask_takes_its_numbers_from_them(self, tmp_path: Path) -> None:
        ni = BASE | {"kind": "non_inferiority", "margin": 0.005, "system": "joint_r8", "baseline": "rank_only_r8"}
        contents = contents_of(steady(0.9), load_gates(gate_file(tmp_path, wide=INTERFERENCE | UNUSUAL, ni=ni)))
        other, wide = (dict(verdict.more)["Asked"] for verdict in contents.verdicts)
        assert wide == "PASS from 10 %, FAIL below 8 %, with confidence 0.8"
        assert other == "joint_r8 is not worse than rank_only_r8 by more than 0.5 points, with confidence 0.9"
        assert "2 %" not in " ".join(contents.reading)


def systems(**shifts: float) -> Scores:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.5, 200)
    return [
        make_result(
            arm, None, base + shift + rng.normal(0.0, 0.1, 200), dataset="nfcorpus", task="retrieval",
            identity={"checkpoint": "none"},
        )
        for arm, shift in shifts.items()
    ]  # fmt: skip


class TestSystems:
    @pytest.mark.parametrize(("p", "said"), [(0.04998, ".04998"), (0.05, ".0500"), (1.0, "1"), (1e-6, "< .0001")])
    def test_p_is_said_on_its_side_of_the_level(self, p: float, said: str) -> None:
        """A significant difference had "p .0500"."""
        results = loaded(systems(alpha=0.05, beta=0.0))
        (tested,) = compare_arms(results, iterations=10)
        (sentence,) = systems_headlines(results, [replace(tested, p_corrected=p)])
        assert f"(p {said} after Holm), and is {'' if p < 0.05 else 'not '}significantly better" in sentence

    @pytest.mark.parametrize(
        ("shifts", "words"),
        [
            ({"alpha": 0.0}, "On nfcorpus, alpha is the only system: its nDCG@10 is "),
            ({"alpha": 0.0, "beta": 0.002}, "and is not significantly better than "),
            ({"bm25": 0.0, "zero_shot": 0.1}, "and is significantly better than bm25."),
        ],
    )
    def test_little_to_say_is_said(self, shifts: dict[str, float], words: str) -> None:
        results = loaded(systems(**shifts))
        (sentence,) = systems_headlines(results, compare_arms(results, iterations=10))
        assert words in sentence

    def several(self, *datasets: str, **shifts: float) -> Results:
        return loaded([r.model_copy(update={"dataset": name}) for name in datasets for r in systems(**shifts)])

    def test_of_many_places_the_best_systems_are_named(self) -> None:
        results = self.several("x", "y", "z", bm25=0.0, minilm=0.08)
        apart = [r for r in results.results if (r.config_name, r.dataset) != ("bm25", "z")]
        apart += [r.model_copy(update={"dataset": "w"}) for r in systems(bm25=0.0)]
        results = loaded(apart)
        said = systems_headlines(results, Analysis(results, iterations=10).tests)
        assert said == [
            "Highest main metric: bm25 on w; minilm on x, y and z.",
            "Significant: minilm above bm25 on x and y.",
        ]

    def test_equal_systems_share_the_first_place(self) -> None:
        one = systems(alpha=0.0)
        same = one[0].model_copy(update={"config_name": "beta"})
        results = loaded([*one, same])
        comparisons: tuple[Comparison, ...] = compare_arms(results, iterations=10)
        assert "alpha and beta share the highest nDCG@10" in systems_headlines(results, comparisons)[0]

    def test_a_folder_without_gates_has_a_report_of_its_own(self, tmp_path: Path) -> None:
        for result in systems(bm25=0.0, minilm=0.01, fusion=0.05):
            write_result(tmp_path, result)
        path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
        text, page = (p.read_text(encoding="utf-8") for p in (path.with_suffix(".md"), path))
        assert text.splitlines()[2].startswith("- On nfcorpus, fusion has the highest nDCG@10")
        assert text.index("figures/scores-retrieval.png") < text.index("## Paired comparisons")
        assert page.index('id="scores-retrieval-') < page.index("Paired comparisons</h2>")
        for said in (text, page):
            assert "Verdicts</h2>" not in said
            assert "## Verdicts" not in said
            assert "nothing to decide on" not in said
            assert "No gates were registered" not in said


class TestRegisteredGates:
    def test_a_broken_gate_file_stops_before_anything_is_written(self, tmp_path: Path) -> None:
        for result in steady(0.9):
            write_result(tmp_path, result)
        (tmp_path / REGISTERED).write_text("gates: []", encoding="utf-8")
        with pytest.raises(DataError, match=REGISTERED):
            write_report(Analysis(load_all_results(tmp_path), iterations=20))
        assert not (tmp_path / "analysis").exists()


class _Page(HTMLParser):
    """Elements and the text of data blocks, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)
            self._inside = False


class TestHtml:
    def test_a_tiny_difference_of_a_query_has_no_sign(self) -> None:
        """It was -0.00 in the list of queries."""
        scores = {"rank_only_r8": [0.5, 0.6] * 4, "joint_r8": [0.5 - 1e-7, 0.6 + 1e-7] * 4}
        analysis = Analysis(loaded([make_result(arm, 0, values) for arm, values in scores.items()]))
        page = html_page(gather(analysis, []), [])
        assert "<td>0.00</td>\n<td>0.000</td>" in page
        table = drilldown_table(analysis.cases["reranking.joint_r8", "apidocs"], analysis.judgments[0].gate, "apidocs")
        for said in (page, table.to_markdown()):
            assert not re.search(r"[-+−]0\.00", said)

    def test_the_only_script_that_may_run_is_the_reports_own(self) -> None:
        page = html_page(contents_of(noisy()), [])
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy is not None
        own = base64.b64encode(hashlib.sha256(_Page(page).scripts[-1].encode()).digest()).decode()
        assert f"script-src 'sha256-{own}'" in policy[1]
        assert policy[1].startswith("default-src 'none';")

    def test_data_for_the_script_cannot_end_it(self) -> None:
        hostile = "</script><!--<script>\u2028&"
        contents = contents_of(noisy(hostile))
        page = _Page(html_page(contents, []))
        data = page.scripts[0]
        assert not set("<>&\u2028\u2029") & set(data)
        assert json.loads(data)["places"] == list(contents.queries.places)


class TestProvenance:
    def test_a_checkpoint_is_named_once_for_each_arm_and_seed(self) -> None:
        hashes = {"checkpoint": "feed"}
        results = loaded([make_result("joint_r8", 0, [0.5], dataset=d, hashes=hashes) for d in ("a", "b")])
        assert [text for name, text in provenance(results) if name == "joint_r8 seed 0"] == ["checkpoint feed"]


class TestMissing:
    @pytest.mark.parametrize("results", [noisy(), steady(0.9, seeds=1), [*noisy("a"), *noisy("b")]])
    def test_an_undecided_verdict_says_what_it_lacks(self, results: Scores) -> None:
        (verdict,) = contents_of(results).verdicts
        assert "Would settle it" in dict(verdict.first) or "train two more" in verdict.said.headline

    def test_left_out_seeds_are_named(self) -> None:
        paired = [
            result.model_copy(update={"config": {"paired_seeds": True}})
            for result in [*steady(0.9), make_result("joint_r8", 7, np.linspace(0.5, 0.7, 40))]
        ]
        (verdict,) = contents_of(paired).verdicts
        assert any(name == "Note" and "left out" in text and "joint_r8 seed 7" in text for name, text in verdict.more)
