"""The report's pages: queries, HTML, Markdown, provenance, and what is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from support.reports import Scores, contents_of, loaded, noisy, steady
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import (
    drilldown_table,
)
from unimoe.analysis.report import gather
from unimoe.analysis.report.pages import html_page, provenance


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
