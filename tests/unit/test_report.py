from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import BASE, INTERFERENCE, gate_file, measured
from support.results import make_result, query_ids, simulate, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import MOST_CASES
from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.analysis.interference import InterferenceMetrics, compute_interference_metrics
from unimoe.analysis.loading import Results, load_all_results
from unimoe.analysis.report import html, markdown, write_report
from unimoe.analysis.report.cards import Card, cards, summary, tally
from unimoe.analysis.report.contents import Contents, gather
from unimoe.analysis.report.provenance import missing_parts, provenance
from unimoe.analysis.report.queries import MOST_CHARACTERS, gather_queries
from unimoe.errors import DataError
from unimoe.io import hash_file
from unimoe.results import DrillDown, EvalResult, QueryDetail, write_result

Scores = list[EvalResult]


def constant(joint: float, *, seeds: int = 2, **given: Any) -> Scores:
    """rank_only scores .6 on each of 12 queries and joint another constant, so that labels are certain."""
    return measured("rank_only_r8", [[0.6] * 12] * seeds, **given) + measured(
        "joint_r8", [[joint] * 12] * seeds, **given
    )


def noisy(dataset: str = "apidocs") -> Scores:
    specialist, joint = simulate(3, 30, 0.015, rng=np.random.default_rng(2))
    return measured("rank_only_r8", specialist, dataset) + measured("joint_r8", joint, dataset)


def loaded(results: Scores) -> Results:
    return Results(Path("nowhere"), results)


def cards_of(results: Scores, registration: Registration | None = None) -> tuple[Card, ...]:
    analysis = Analysis(loaded(results), registration)
    return cards(analysis.registration, analysis.outcomes, analysis.metrics.missing)


def contents_of(results: Results) -> Contents:
    return gather(Analysis(results), [])


class TestCards:
    @pytest.mark.parametrize(
        ("joint", "label", "action", "words"),
        [
            (0.5, "PASS", "Go on", "Interference confirmed"),
            (0.6, "FAIL", "Stop", "No interference worth the split"),
            (0.7, "FAIL", "Stop", "the joint model is ahead (synergy)"),
            (0.591, "MARGINAL", "In between: neither go on nor stop", "too small to go on"),
        ],
    )
    def test_a_label_comes_with_what_to_do(self, joint: float, label: str, action: str, words: str) -> None:
        (card,) = cards_of(constant(joint))
        assert (card.badge.label, card.badge.action) == (label, action)
        assert words in card.consequence
        assert card.heading == "Reranking on apidocs"
        assert card.about == "joint_r8 against rank_only_r8 (ndcg@10, 12 queries, seeds 0, 1)"

    def test_noise_says_what_would_settle_it(self) -> None:
        (card,) = cards_of(noisy())
        assert card.badge.action == "Cannot tell yet"
        assert {"95 % interval", "Rule", "With confidence", "Would settle it", "Stability"} <= dict(card.lines).keys()

    def test_unfit_results_decide_nothing(self) -> None:
        (card,) = cards_of(constant(0.5, caveats=["smoke run: unfit"]))
        assert card.badge.label == "ADVISORY"
        assert card.badge.tone == ""
        assert "would say PASS" in card.consequence
        assert "smoke run: unfit" in card.consequence

    def test_one_seed_cannot_tell(self) -> None:
        (card,) = cards_of(constant(0.5, seeds=1))
        assert card.badge.action == "Cannot tell yet"
        assert card.gauge is not None
        assert card.gauge.low is None
        assert "seed 0)" in card.about

    def test_what_cannot_be_computed_is_a_card_too(self) -> None:
        (card,) = cards_of(constant(0.5)[:2])
        assert (card.badge.label, card.consequence) == ("NOT JUDGED", "TIR not computable: joint_r8 missing.")
        (nothing,) = cards_of([make_result("bm25", None, [0.5], task="retrieval")])
        assert "no specialist and no joint arm" in nothing.consequence

    def test_a_registered_gate_that_cannot_be_judged_is_named(self, tmp_path: Path) -> None:
        registration = load_gates(gate_file(tmp_path, kill=INTERFERENCE, gone=INTERFERENCE | {"joint": "joint_r9"}))
        gone, kill = cards_of(constant(0.5), registration)
        assert kill.about.startswith("Gate kill, interference: PASS from 2 %, FAIL below 1 %. joint_r8 against")
        assert gone.badge.label == "NOT JUDGED"
        assert "did you mean 'joint_r8'?" in gone.consequence

    def test_both_ways_across_datasets_stand_side_by_side(self) -> None:
        (card,) = cards_of([*constant(0.5, dataset="a"), *constant(0.55, dataset="b")])
        assert card.heading == "Reranking on 2 datasets"
        assert dict(card.lines)["Across datasets"].startswith("mean of TIRs; the TIR of means is +12.5")
        assert "a: +16.67 %, b: +8.33 %" in dict(card.folded)["By dataset"]

    def test_all_verdicts_in_one_sentence(self) -> None:
        go, stop = cards_of(constant(0.5))[0], cards_of(constant(0.6))[0]
        assert summary([go]) == "One verdict: go on."
        assert summary([stop, stop]) == "Both verdicts: stop."
        assert summary([go] * 3) == "All 3 verdicts: go on."
        assert summary([stop, go, stop]) == "3 verdicts: 1 × go on; 2 × stop."
        assert [(badge.label, badge.count) for badge in tally([stop, go, stop])] == [("PASS", 1), ("FAIL", 2)]


class TestGauge:
    def test_places_keep_their_order_and_leave_room(self) -> None:
        (card,) = cards_of(noisy())
        gauge = card.gauge
        assert gauge is not None
        assert gauge.low is not None
        assert gauge.high is not None
        assert 5 < gauge.low < gauge.estimate < gauge.high < 95
        assert gauge.cutoffs[0].at < gauge.cutoffs[1].at
        assert gauge.ends == ("FAIL", "PASS")
        assert gauge.words.endswith("cutoffs: 1 %, 2 %")

    def test_equivalence_fails_at_both_ends(self, tmp_path: Path) -> None:
        gate = {"kind": "equivalence", "margin": 0.01, "system": "joint_r8", "baseline": "rank_only_r8"}
        (card,) = cards_of(constant(0.6), load_gates(gate_file(tmp_path, same=BASE | gate)))
        assert card.gauge is not None
        assert card.gauge.ends == ("FAIL", "FAIL")
        assert [cutoff.text for cutoff in card.gauge.cutoffs] == ["-1 points", "1 points"]


class TestQueries:
    def test_the_largest_differences_come_first_and_ties_not_at_all(self) -> None:
        scores = {"rank_only_r8": [0.9, 0.5, 0.5, 0.2], "joint_r8": [0.1, 0.5, 0.6, 0.5]}
        results = loaded([make_result(arm, 0, values) for arm, values in scores.items()])
        queries = gather_queries(Analysis(results))
        assert [(row.id, row.difference) for row in queries.rows] == [("q000", -80.0), ("q003", 30.0), ("q002", 10.0)]
        assert "3 of 4 queries" in queries.words
        assert queries.places == ("reranking/apidocs",)

    def test_many_queries_and_long_texts_are_cut(self, tmp_path: Path) -> None:
        n = 2000
        rng = np.random.default_rng(0)
        relevant = {f"document-{i}" * 9: 1 for i in range(60)}
        detail = DrillDown(
            queries={
                query_id: QueryDetail(text="long & text " * 90, relevant=relevant, ranks=dict.fromkeys(relevant, 12345))
                for query_id in query_ids(n)
            }
        )
        for dataset in ("a", "b"):
            for arm in ("rank_only_r8", "joint_r8"):
                write_result(tmp_path, make_result(arm, 0, rng.uniform(0.2, 0.8, n).tolist(), dataset=dataset), detail)
        results = load_all_results(tmp_path)
        contents = contents_of(results)
        assert len(contents.queries.rows) == MOST_CASES
        assert contents.queries.total == 2 * n
        assert max(len(row.text) for row in contents.queries.rows) == MOST_CHARACTERS
        assert contents.queries.rows[0].ranks[-1] == "and 55 more"
        assert len(html.render(contents, []).encode()) < 6 * 2**20

    def test_sidecars_that_are_absent_are_missing_parts(self) -> None:
        contents = contents_of(loaded(noisy()))
        assert any("queries.json" in line for line in contents.missing)
        assert contents.queries.rows[0].ranks == ()


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
    def test_the_only_script_that_may_run_is_the_reports_own(self) -> None:
        page = html.render(contents_of(loaded(noisy())), [])
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy is not None
        own = base64.b64encode(hashlib.sha256(_Page(page).scripts[-1].encode()).digest()).decode()
        assert f"script-src 'sha256-{own}'" in policy[1]
        assert policy[1].startswith("default-src 'none';")

    def test_it_needs_nothing_but_itself(self) -> None:
        page = _Page(html.render(contents_of(loaded(noisy())), []))
        assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
        links = [value for name, value in page.attributes if name in ("src", "href", "action", "srcset")]
        assert links
        assert all(link and link.startswith("#") for link in links)
        assert not [name for name, _ in page.attributes if name.startswith("on")]

    def test_links_of_the_table_of_contents_lead_somewhere(self, tmp_path: Path) -> None:
        write_experiment(tmp_path, seeds=(0, 1), queries=10, logs=False)
        text = write_report(Analysis(load_all_results(tmp_path), iterations=20)).read_text(encoding="utf-8")
        page = _Page(text)
        ids = [value for name, value in page.attributes if name == "id"]
        assert len(ids) == len(set(ids))
        own = [value for name, value in page.attributes if name == "href" and value and not value.startswith("#figure")]
        assert {value[1:] for value in own} <= set(ids)

    def test_data_for_the_script_cannot_end_it(self) -> None:
        hostile = "</script><!--<script>\u2028&"
        contents = contents_of(loaded(noisy(hostile)))
        page = _Page(html.render(contents, []))
        data = page.scripts[0]
        assert not set("<>&\u2028\u2029") & set(data)
        assert json.loads(data)["places"] == list(contents.queries.places)


class TestMarkdown:
    def test_names_stay_text(self) -> None:
        results = loaded(noisy("*a* <b>|_c_ [d](e)"))
        text = markdown.render(contents_of(results), [])
        assert "<b>" not in text
        assert r"\*a\* &lt;b&gt;&#124;\_c\_ \[d\](e)" in text

    def test_verdicts_come_before_anything_else(self) -> None:
        text = markdown.render(contents_of(loaded(constant(0.5, caveats=["smoke run"]))), [])
        assert text.index("> **Caveat:** smoke run") < text.index("## Verdicts") < text.index("ADVISORY")
        assert text.index("Gates: not registered") < text.index("### Reranking on apidocs")
        assert "\n\n\n" not in text


class TestProvenance:
    def test_what_differs_names_its_arms(self) -> None:
        results = loaded([*constant(0.5), make_result("bm25", None, [0.4] * 12)])
        facts = list(provenance(results))
        assert ("Base model", "smollm2@0123456789abcdef") in facts
        assert ("reranking/apidocs", "candidates decade, collection c0ffee") in facts

    def test_a_checkpoint_stands_once_per_arm_and_seed(self) -> None:
        hashes = {"checkpoint": "feed"}
        results = loaded([make_result("joint_r8", 0, [0.5], dataset=d, hashes=hashes) for d in ("a", "b")])
        assert [text for name, text in provenance(results) if name == "joint_r8 seed 0"] == ["checkpoint feed"]

    def test_two_checkpoints_of_one_seed_name_their_places(self) -> None:
        results = loaded(
            [
                make_result("joint_r8", 0, [0.5], dataset=d, hashes={"checkpoint": h})
                for d, h in (("a", "x"), ("b", "y"))
            ]
        )
        found = [text for name, text in provenance(results) if name == "joint_r8 seed 0"]
        assert found == ["checkpoint x (reranking/a)", "checkpoint y (reranking/b)"]

    def test_missing_seeds_counterparts_and_logs_are_named(self) -> None:
        results = loaded([*constant(0.5, seeds=1), make_result("joint_r8", 1, [0.5] * 12)])
        lines = list(missing_parts(results, compute_interference_metrics(results)))
        assert "reranking on apidocs: one seed in common; an interval needs two, and three are usual" in lines
        assert "reranking on apidocs: joint_r8 seed 1 has no counterpart" in lines
        assert "no training log of joint_r8 seed 0, joint_r8 seed 1, rank_only_r8 seed 0" in lines

    def test_nothing_missing_is_said(self) -> None:
        assert list(missing_parts(loaded([make_result("bm25", None, [0.5])]), InterferenceMetrics((), ()))) == []


class TestRegisteredGates:
    def test_the_folders_gate_file_is_named_with_its_hash_and_older_results(self, tmp_path: Path) -> None:
        for result in constant(0.5):
            write_result(tmp_path, result)
        gate_file(tmp_path, registered="2026-03-01", kill=INTERFERENCE)
        path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
        for text in (path.read_text(encoding="utf-8"), path.with_suffix(".md").read_text(encoding="utf-8")):
            assert hash_file(tmp_path / REGISTERED) in text
            assert "registered 2026-03-01T00:00:00+00:00" in text
            assert "4 of 4 results are older than this gate" in text

    def test_a_broken_gate_file_stops_before_anything_is_written(self, tmp_path: Path) -> None:
        for result in constant(0.5):
            write_result(tmp_path, result)
        (tmp_path / REGISTERED).write_text("gates: []", encoding="utf-8")
        with pytest.raises(DataError, match=REGISTERED):
            write_report(Analysis(load_all_results(tmp_path), iterations=20))
        assert not (tmp_path / "analysis").exists()
