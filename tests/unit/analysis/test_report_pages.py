"""The report's pages: queries, HTML, Markdown, provenance, and what is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.gates import BASE, INTERFERENCE, gate_file
from support.reports import UNUSUAL, Scores, contents_of, loaded, noisy, steady, untrained
from support.results import make_result, query_ids, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import (
    MOST_CASES,
    MOST_CHARACTERS,
    Queries,
    QueryCase,
    Ranks,
    _row,
    drilldown_table,
    gather_queries,
)
from unimoe.analysis.figures import all_figures, to_svg
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.pages import html_page, markdown_page, missing_parts, provenance
from unimoe.results import DrillDown, QueryDetail, write_result
from unimoe.results.folder import load_all_results


def words_of(path: Path, analysis: Analysis) -> str:
    """Everything that a reader of the report sees: both pages, and the text of every figure."""
    figures = [
        element.text or ""
        for drawing in all_figures(analysis)
        for element in ET.fromstring(to_svg(drawing.figure, drawing.name)).iter()
    ]
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = re.sub(r"<[^>]+>", " ", page).replace("\u00a0", " ")
    return "\n".join([shown, path.with_suffix(".md").read_text(encoding="utf-8"), *figures])


def test_unusual_cutoffs_reach_every_output_and_no_others_do(tmp_path: Path) -> None:
    for result in [*steady(0.956), untrained("zero_shot")]:
        write_result(tmp_path, result)
    gate_file(tmp_path, it=INTERFERENCE | UNUSUAL)
    analysis = Analysis(load_all_results(tmp_path), iterations=20)
    (item,) = analysis.judgments
    assert item.label == "FAIL"
    said = words_of(write_report(analysis), analysis)
    said = said.replace("bm25s(k1=0.9,b=0.4)", "")
    for foreign in (r"(?<![\d.])[12] %", r"(?<!\d)0?\.90?(?!\d)", r"\bMARGINAL [.01]+, FAIL 0\.0"):
        assert not re.search(foreign, said), re.findall(f".{{40}}{foreign}.{{40}}", said)
    labels = re.findall(r"\b(?:INCONCLUSIVE|ADVISORY|NOT JUDGED)\b", said)
    assert set(labels) <= {"INCONCLUSIVE"}  # the words that explain it, of tables and page
    assert not re.search(r"- \*\*(?:PASS|MARGINAL|INCONCLUSIVE)\*\*", said)
    assert "FAIL below 8 %" in said
    assert "PASS from 10 %" in said


def queries_of(analysis: Analysis) -> Queries:
    return gather_queries(analysis.judgments, analysis.cases)


class TestQueries:
    def test_the_largest_differences_come_first_and_ties_not_at_all(self) -> None:
        scores = {"rank_only_r8": [0.9, 0.5, 0.5, 0.2], "joint_r8": [0.1, 0.5, 0.6, 0.5]}
        results = loaded([make_result(arm, 0, values) for arm, values in scores.items()])
        queries = queries_of(Analysis(results))
        assert [(row.id, row.difference) for row in queries.rows] == [("q000", -80.0), ("q003", 30.0), ("q002", 10.0)]
        assert (queries.rows[0].first, queries.rows[0].second) == (90.0, 10.0)
        assert "3 of 4 queries" in queries.words
        assert queries.places == ("reranking/apidocs",)
        assert (queries.roles, queries.value) == (("Specialist", "Joint"), "TIR")

    def test_documents_that_were_found_come_first_and_unfound_ones_last(self) -> None:
        ranks: Ranks = {
            "unfound": (None, None),
            "late": (7, None),
            "early": (None, 2),
            "graded": (7, None),
        }
        none: Ranks = dict.fromkeys(ranks, (None, None))
        grades = {"unfound": 3, "late": 1, "early": 1, "graded": 2}
        row = _row(0, QueryCase("q", "", 0.5, 0.1, -0.4, 0.1, grades, ranks, none, ()))
        assert [line.partition(":")[0] for line in row.ranks] == ["early", "graded", "late", "unfound"]
        assert row.best == 2

    def test_gates_of_several_kinds_share_headings_and_have_places(self, tmp_path: Path) -> None:
        gate = BASE | {"kind": "superiority", "margin": 0.01, "system": "joint_r8", "baseline": "rank_only_r8"}
        registration = load_gates(gate_file(tmp_path, kill=INTERFERENCE, better=gate))
        queries = queries_of(Analysis(loaded(noisy()), registration))
        assert queries.roles == ("Specialist or system", "Joint or baseline")
        arms = "reranking/apidocs: joint_r8 against rank_only_r8"
        assert set(queries.places) == {f"{arms} (kill)", f"{arms} (better)"}

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
        contents = gather(Analysis(load_all_results(tmp_path)), [])
        assert len(contents.queries.rows) == MOST_CASES
        assert f"{MOST_CASES:,} of {2 * n:,} queries" in contents.queries.words
        assert max(len(row.text) for row in contents.queries.rows) == MOST_CHARACTERS
        assert contents.queries.rows[0].ranks[-1] == "and 55 more"
        assert len(html_page(contents, []).encode()) < 6 * 2**20

    def test_sidecars_that_are_absent_are_missing_parts(self) -> None:
        contents = contents_of(noisy())
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

    def test_it_needs_nothing_but_itself(self) -> None:
        page = _Page(html_page(contents_of(noisy()), []))
        assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
        links = [value for name, value in page.attributes if name in ("src", "href", "action", "srcset")]
        assert all(link and link.startswith("#") for link in links)
        assert not [name for name, _ in page.attributes if name.startswith("on")]

    def test_links_within_the_page_lead_somewhere(self, tmp_path: Path) -> None:
        write_experiment(tmp_path, seeds=(0, 1), queries=10, logs=False)
        text = write_report(Analysis(load_all_results(tmp_path), iterations=20)).read_text(encoding="utf-8")
        page = _Page(text)
        ids = [value for name, value in page.attributes if name == "id"]
        assert len(ids) == len(set(ids))
        own = [value for name, value in page.attributes if name == "href" and value and not value.startswith("#figure")]
        assert {value[1:] for value in own} <= set(ids)

    def test_data_for_the_script_cannot_end_it(self) -> None:
        hostile = "</script><!--<script>\u2028&"
        contents = contents_of(noisy(hostile))
        page = _Page(html_page(contents, []))
        data = page.scripts[0]
        assert not set("<>&\u2028\u2029") & set(data)
        assert json.loads(data)["places"] == list(contents.queries.places)


class TestMarkdown:
    def test_names_stay_text(self) -> None:
        text = markdown_page(contents_of(noisy("*a* <b>|_c_ [d](e)")), [])
        assert "<b>" not in text
        assert r"\*a\* &lt;b&gt;&#124;\_c\_ \[d\](e)" in text

    def test_findings_come_before_anything_else(self) -> None:
        text = markdown_page(contents_of(steady(0.9, caveats=["smoke run"])), [])
        assert text.index("> **Caveat:** smoke run") < text.index("gate: ADVISORY PASS") < text.index("## Verdicts")
        assert text.index("No gates were registered") < text.index("### Reranking on apidocs")
        assert "\n\n\n" not in text


class TestProvenance:
    def test_what_differs_names_its_arms(self) -> None:
        results = loaded([*steady(0.9), untrained("bm25")])
        facts = list(provenance(results))
        assert ("Base model", "smollm2@0123456789abcdef") in facts
        assert ("reranking/apidocs", "candidates decade, collection c0ffee") in facts

    def test_whether_seeds_pair_is_said(self) -> None:
        declared = [result.model_copy(update={"config": {"paired_seeds": True}}) for result in steady(0.9)]
        assert dict(provenance(loaded(steady(0.9))))["Seeds"].startswith("seeds of two arms make no pairs")
        assert dict(provenance(loaded(declared)))["Seeds"].startswith("equal seeds of two arms make a pair")

    def test_a_checkpoint_is_named_once_for_each_arm_and_seed(self) -> None:
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


class TestMissing:
    def test_pairs_seeds_untrained_arms_and_logs_are_named(self) -> None:
        results = [*steady(0.9, seeds=1), make_result("emb_only_r8", 0, [0.5], task="embedding", dataset="e")]
        lines = list(missing_parts(Analysis(loaded(results))))
        assert any(line.startswith("embedding on e: no TIR, joint_r8 has no result on e") for line in lines)
        assert (
            "reranking.joint_r8: no zero_shot result beside it, so nothing says whether rank_only_r8 has learnt"
            in lines
        )
        assert "no training log of emb_only_r8 seed 0, joint_r8 seed 0, rank_only_r8 seed 0" in lines

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

    def test_nothing_missing_is_said(self) -> None:
        contents = contents_of([untrained("bm25", task="retrieval")])
        assert contents.missing == ()
        assert "Nothing." in markdown_page(contents, [])
