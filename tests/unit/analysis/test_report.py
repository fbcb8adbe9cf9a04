from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import BASE, INTERFERENCE, gate_file, measured
from support.results import make_result, query_ids, simulate, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Comparison, Question, compare_arms
from unimoe.analysis.drilldown import MOST_CASES, QueryCase, Ranks
from unimoe.analysis.figures import all_figures, to_svg
from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.analysis.gates.wording import action, headline
from unimoe.analysis.loading import Results, load_all_results
from unimoe.analysis.report import gather, write_report
from unimoe.analysis.report.cards import Card
from unimoe.analysis.report.pages import Contents, html_page, markdown_page
from unimoe.analysis.report.provenance import missing_parts, provenance
from unimoe.analysis.report.queries import MOST_CHARACTERS, _row, gather_queries
from unimoe.analysis.report.systems import systems_headlines
from unimoe.errors import DataError
from unimoe.io import hash_file
from unimoe.results import DrillDown, EvalResult, QueryDetail, write_result

Scores = list[EvalResult]

UNUSUAL = {"pass_at": 0.10, "fail_below": 0.08, "confidence": 0.8}


def steady(joint: float, dataset: str = "apidocs", *, seeds: int = 3, **given: Any) -> Scores:
    """rank_only scores .5 to .7 on 40 queries; joint has this share of it, with little noise."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.5, 0.7, 40)
    own, other = (factor * base + rng.normal(0.0, 0.002, (seeds, 40)) for factor in (1.0, joint))
    return measured("rank_only_r8", own, dataset, **given) + measured("joint_r8", other, dataset, **given)


def noisy(dataset: str = "apidocs") -> Scores:
    specialist, joint = simulate(3, 30, 0.015, rng=np.random.default_rng(2))
    return measured("rank_only_r8", specialist, dataset) + measured("joint_r8", joint, dataset)


def untrained(arm: str, factor: float = 0.5, **given: Any) -> EvalResult:
    return make_result(arm, None, factor * np.linspace(0.5, 0.7, 40), identity={"checkpoint": "none"}, **given)


def loaded(results: Scores) -> Results:
    return Results(Path("nowhere"), results)


def contents_of(results: Scores, registration: Registration | None = None) -> Contents:
    return gather(Analysis(loaded(results), registration, iterations=10), [])


def cards_of(results: Scores, registration: Registration | None = None) -> tuple[Card, ...]:
    return contents_of(results, registration).cards


class TestHeadlines:
    def test_the_report_opens_with_the_finding(self) -> None:
        contents = contents_of(steady(0.95))
        ((heading, (card,)),) = contents.headlines
        assert heading == ""
        assert card.label == "PASS"
        assert card.headline == (
            "joint_r8 loses 5.0 % of rank_only_r8's ndcg@10 on apidocs (95 % interval 4.8 to 5.2 %): interference, 2 % "
            "or more."
        )
        text = markdown_page(contents, [])
        assert text.splitlines()[2].startswith("- **PASS** joint_r8 loses 5.0 % of rank_only_r8's")
        assert text.index("joint_r8 loses") < text.index("## Verdicts")
        for words in ("One verdict", "go on.", "nothing to decide on", "confirmed"):
            assert words not in text

    def test_headline_and_action_are_those_of_the_judgment(self) -> None:
        for share in (0.9, 1.0, 1.1, 0.985):
            analysis = Analysis(loaded(steady(share)))
            (card,), (item,) = gather(analysis, []).cards, analysis.judgments
            assert card.headline == headline(item)
            assert card.action.lower() == action(item)
            assert card.label == item.label

    def test_a_specialist_that_has_learnt_nothing_is_in_the_headline_and_missing(self) -> None:
        contents = contents_of([*steady(0.9), untrained("zero_shot", 1.0)])
        assert "But rank_only_r8 has learnt nothing measurable" in contents.cards[0].headline
        assert any("a specialist that has learnt" in line for line in contents.missing)

    def test_registered_gates_are_told_apart_from_the_rules_own(self, tmp_path: Path) -> None:
        registration = load_gates(gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["a"]}, gone=INTERFERENCE))
        contents = contents_of([*steady(0.9, "a"), *steady(0.9, "b")], registration)
        registered, own = contents.headlines
        assert registered[0] == "Registered gates"
        assert {card.label for card in registered[1]} == {"PASS", "NOT JUDGED"}
        assert own[0].startswith("Not registered")
        assert [card.heading for card in own[1]] == ["Reranking on b"]
        assert own[1][0].about.endswith("gate reranking.joint_r8, not registered")

    def test_advisory_results_decide_nothing(self) -> None:
        (card,) = cards_of(steady(0.9, caveats=["smoke run: unfit"]))
        assert (card.label, card.tone) == ("ADVISORY PASS", "")
        assert card.action == "A look ahead, no decision"
        assert "smoke run: unfit" in dict(card.lines)["Advisory"]


class TestCards:
    def test_noise_says_what_would_settle_it(self) -> None:
        (card,) = cards_of(noisy())
        assert card.action == "Measure more"
        assert {"TIR", "Confidence", "Would settle it"} <= dict(card.lines).keys()
        assert {"Asked", "Scores", "Stability"} <= dict(card.folded).keys()

    def test_one_seed_cannot_tell_and_is_missing(self) -> None:
        contents = contents_of(steady(0.9, seeds=1))
        (card,) = contents.cards
        assert card.label == "INCONCLUSIVE"
        assert "train two more" in card.headline
        assert any("one seed of rank_only_r8 and joint_r8" in line for line in contents.missing)

    def test_a_gate_that_cannot_be_judged_is_named_with_its_reason(self, tmp_path: Path) -> None:
        registration = load_gates(gate_file(tmp_path, kill=INTERFERENCE, gone=INTERFERENCE | {"joint": "joint_r9"}))
        contents = contents_of(steady(0.9), registration)
        gone, kill = contents.cards
        assert kill.about == "joint_r8 against rank_only_r8, ndcg@10; gate kill, registered"
        assert gone.label == "NOT JUDGED"
        assert gone.gauge is None
        assert "did you mean 'joint_r8'?" in gone.headline
        assert any(line.startswith("gone was not judged:") for line in contents.missing)

    def test_datasets_are_parts_of_one_card(self) -> None:
        (card,) = cards_of([*steady(0.9, "a"), *steady(0.95, "b")])
        assert card.heading == "Reranking on 2 datasets"
        assert [name for name, _ in card.parts] == ["a", "b"]
        assert all(text.endswith(" PASS") for _, text in card.parts)
        assert dict(card.folded)["Across datasets"].startswith("mean of TIRs; the TIR of mean scores is +7.4")

    def test_reading_takes_its_numbers_from_the_gates(self, tmp_path: Path) -> None:
        ni = BASE | {"kind": "non_inferiority", "margin": 0.005, "system": "joint_r8", "baseline": "rank_only_r8"}
        reading = " ".join(
            contents_of(steady(0.9), load_gates(gate_file(tmp_path, wide=INTERFERENCE | UNUSUAL, ni=ni))).reading
        )
        assert "wide: PASS from 10 %, FAIL below 8 %, MARGINAL between; a label needs confidence 0.8." in reading
        assert "ni: joint_r8 is not worse than rank_only_r8 by more than 0.5 points; a label needs" in reading
        assert "2 %" not in reading


class TestGauge:
    def test_places_keep_their_order_and_leave_room(self) -> None:
        gauge = cards_of(noisy())[0].gauge
        assert gauge is not None
        assert gauge.low is not None
        assert gauge.high is not None
        assert 5 < gauge.low < gauge.estimate < gauge.high < 95
        assert gauge.cutoffs[0][0] < gauge.cutoffs[1][0]
        assert gauge.ends == ("FAIL", "PASS")
        assert gauge.words.endswith("cutoffs: 1 %, 2 %")

    def test_equivalence_fails_at_both_ends(self, tmp_path: Path) -> None:
        gate = {"kind": "equivalence", "margin": 0.01, "system": "joint_r8", "baseline": "rank_only_r8"}
        gauge = cards_of(steady(1.0), load_gates(gate_file(tmp_path, same=BASE | gate)))[0].gauge
        assert gauge is not None
        assert gauge.ends == ("FAIL", "FAIL")
        assert [text for _, text, _ in gauge.cutoffs] == ["-1 points", "1 point"]

    def test_a_ratio_to_nothing_has_none(self) -> None:
        (card,) = cards_of([*measured("rank_only_r8", [[0.0] * 40] * 2), *measured("joint_r8", [[0.1] * 40] * 2)])
        assert card.label == "INCONCLUSIVE"
        assert card.gauge is None
        assert "cannot be compared" in card.headline

    def test_a_very_long_interval_goes_on_beyond_the_line(self) -> None:
        rng = np.random.default_rng(0)
        own = rng.uniform(0.4, 0.6, (2, 8))
        joint = own[::-1] + rng.normal(0.0, 0.2, (2, 8))
        (card,) = cards_of([*measured("rank_only_r8", own), *measured("joint_r8", joint)])
        assert card.gauge is not None
        assert any(card.gauge.goes_on)
        assert {card.gauge.low, card.gauge.high} & {0.0, 100.0}


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
    def test_the_best_system_is_named_with_margin_interval_and_whom_it_beats(self) -> None:
        results = loaded(systems(bm25=0.0, minilm=-0.03, fusion=0.05))
        comparisons = compare_arms(results, iterations=10)
        (sentence,) = systems_headlines(results, comparisons)
        c = next(c for c in comparisons if (c.system, c.baseline) == ("fusion", "bm25"))
        low, high = c.difference.interval or (0.0, 0.0)
        assert sentence == (
            f"On nfcorpus, fusion has the highest ndcg@10 ({100 * c.means[0]:.2f}), {100 * c.delta:.1f} points above "
            f"bm25 [{100 * low:.1f}, {100 * high:.1f}] (p < .0001 after Holm), and is significantly better than bm25 "
            "and minilm."
        )

    def test_the_order_of_the_comparison_does_not_matter(self) -> None:
        results = loaded(systems(alpha=0.05, beta=0.0))
        for system, baseline in (("alpha", "beta"), ("beta", "alpha")):
            comparisons = compare_arms(results, [Question("retrieval/nfcorpus", system, baseline)], iterations=10)
            (sentence,) = systems_headlines(results, comparisons)
            assert re.search(r"alpha has the highest .* points above beta \[\d\.\d, \d\.\d\]", sentence)

    @pytest.mark.parametrize(
        ("shifts", "words"),
        [
            ({"alpha": 0.0}, "On nfcorpus, alpha is the only system: its ndcg@10 is "),
            ({"alpha": 0.0, "beta": 0.002}, "and is not significantly better than "),
            ({"bm25": 0.0, "zero_shot": 0.1}, "and is significantly better than bm25."),
        ],
    )
    def test_little_to_say_is_said(self, shifts: dict[str, float], words: str) -> None:
        results = loaded(systems(**shifts))
        (sentence,) = systems_headlines(results, compare_arms(results, iterations=10))
        assert words in sentence

    def test_equal_systems_share_the_first_place(self) -> None:
        one = systems(alpha=0.0)
        same = one[0].model_copy(update={"config_name": "beta"})
        results = loaded([*one, same])
        comparisons: tuple[Comparison, ...] = compare_arms(results, iterations=10)
        assert "alpha and beta share the highest ndcg@10" in systems_headlines(results, comparisons)[0]

    def test_a_folder_without_gates_has_a_report_of_its_own(self, tmp_path: Path) -> None:
        for result in systems(bm25=0.0, minilm=0.01, fusion=0.05):
            write_result(tmp_path, result)
        path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
        text, page = (p.read_text(encoding="utf-8") for p in (path.with_suffix(".md"), path))
        assert text.splitlines()[2].startswith("- On nfcorpus, fusion has the highest ndcg@10")
        assert text.index("figures/scores-retrieval.png") < text.index("## Paired comparisons")
        assert page.index('id="scores-retrieval-') < page.index("Paired comparisons</h2>")
        for said in (text, page):
            assert "Verdicts</h2>" not in said
            assert "## Verdicts" not in said
            assert "nothing to decide on" not in said
            assert "No gates were registered" not in said


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


class TestQueries:
    def test_the_largest_differences_come_first_and_ties_not_at_all(self) -> None:
        scores = {"rank_only_r8": [0.9, 0.5, 0.5, 0.2], "joint_r8": [0.1, 0.5, 0.6, 0.5]}
        results = loaded([make_result(arm, 0, values) for arm, values in scores.items()])
        queries = gather_queries(Analysis(results))
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
        queries = gather_queries(Analysis(loaded(noisy()), registration))
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
        assert text.index("> **Caveat:** smoke run") < text.index("**ADVISORY PASS**") < text.index("## Verdicts")
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
        assert any("one seed of rank_only_r8 and joint_r8" in line for line in lines)
        assert (
            "reranking.joint_r8: no zero_shot result beside it, so nothing says whether rank_only_r8 has learnt"
            in lines
        )
        assert "no training log of emb_only_r8 seed 0, joint_r8 seed 0, rank_only_r8 seed 0" in lines

    @pytest.mark.parametrize("results", [noisy(), steady(0.9, seeds=1), [*noisy("a"), *noisy("b")]])
    def test_an_inconclusive_label_is_never_beside_nothing_missing(self, results: Scores) -> None:
        lines = list(missing_parts(Analysis(loaded(results))))
        assert any(line.startswith("reranking.joint_r8: ") and "no zero_shot" not in line for line in lines)

    def test_left_out_seeds_are_named(self) -> None:
        paired = [
            result.model_copy(update={"config": {"paired_seeds": True}})
            for result in [*steady(0.9), make_result("joint_r8", 7, np.linspace(0.5, 0.7, 40))]
        ]
        assert any("left out" in line and "joint_r8 seed 7" in line for line in missing_parts(Analysis(loaded(paired))))

    def test_nothing_missing_is_said(self) -> None:
        contents = contents_of([untrained("bm25", task="retrieval")])
        assert contents.missing == ()
        assert "Nothing." in markdown_page(contents, [])


class TestRegisteredGates:
    def test_the_folders_gate_file_is_named_with_its_hash_and_older_results(self, tmp_path: Path) -> None:
        for result in steady(0.9):
            write_result(tmp_path, result)
        gate_file(tmp_path, registered="2026-03-01", kill=INTERFERENCE)
        path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
        for text in (path.read_text(encoding="utf-8"), path.with_suffix(".md").read_text(encoding="utf-8")):
            assert hash_file(tmp_path / REGISTERED) in text
            assert "registered 2026-03-01T00:00:00Z" in text
            assert "6 of 6 results are older than this gate" in text

    def test_a_broken_gate_file_stops_before_anything_is_written(self, tmp_path: Path) -> None:
        for result in steady(0.9):
            write_result(tmp_path, result)
        (tmp_path / REGISTERED).write_text("gates: []", encoding="utf-8")
        with pytest.raises(DataError, match=REGISTERED):
            write_report(Analysis(load_all_results(tmp_path), iterations=20))
        assert not (tmp_path / "analysis").exists()
