from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, constant_gap, gate_file, measured, results
from support.results import make_result, simulate
from support.tables import all_tables, renderings, row, texts

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.registration import default_gates
from unimoe.analysis.gates.wording import confidence_text, shown
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.gates import datasets_table, gates_table, power_table, seeds_table, stability_table
from unimoe.results.folder import Results

Outcomes = tuple[Judgment | Refusal, ...]

UNUSUAL = INTERFERENCE | {"pass_at": 0.10, "fail_below": 0.08, "confidence": 0.8}


def lossy(tir: float = 0.044, seeds: int = 3, queries: int = 60) -> Results:
    return both(*simulate(seeds, queries, tir, rng=np.random.default_rng(1)))


def judged(found: Results, folder: Path, **gates: dict[str, Any]) -> tuple[Judgment, ...]:
    return judgments_of(judge_all(found, load_gates(gate_file(folder, registered="2026-01-01", **gates))))


def judgments_of(outcomes: Outcomes) -> tuple[Judgment, ...]:
    return tuple(outcome for outcome in outcomes if isinstance(outcome, Judgment))


@pytest.fixture
def outcomes(tmp_path: Path) -> Outcomes:
    gates: dict[str, dict[str, Any]] = {
        "kill": INTERFERENCE,
        "same": DIFFERENCE | {"kind": "equivalence"},
        "gone": INTERFERENCE | {"joint": "joint_<r9>"},
    }
    return judge_all(lossy(0.0), load_gates(gate_file(tmp_path, registered="2026-01-01", **gates)))


class TestUnusualCutoffs:
    """A gate at 10 and 8 %, confidence .8: nowhere may the default 2 %, 1 % and .90 appear."""

    RULE = re.compile(r"(?<![\d.,])(?:\+|-|−|\$-\$)?[12](?:\.00?)? ?\\?%|(?<![\d])0?[.]90?(?!\d)")

    @pytest.mark.parametrize("tir", [0.3, 0.044])
    def test_no_form_of_any_table_has_other_numbers(self, tmp_path: Path, tir: float) -> None:
        specialist, joint = simulate(3, 60, tir, rng=np.random.default_rng(4))
        bm25 = {"first_stage": "bm25"}  # k1=0.9 would be found
        items = [make_result("zero_shot", None, 0.5 * specialist[0], identity=bm25)]
        for dataset in ("apidocs", "scifact"):
            items += measured("rank_only_r8", specialist, dataset, identity=bm25)
            items += measured("joint_r8", joint, dataset, identity=bm25)
        found = results(items)
        gates = load_gates(gate_file(tmp_path, it=UNUSUAL, two=UNUSUAL | {"datasets": ["scifact"]}))
        analysis = Analysis(found, gates, iterations=50)
        assert len(analysis.outcomes) == 2
        made = all_tables(analysis)
        assert {table.name for table in made} >= {
            *("gates", "datasets", "seeds", "stability", "power", "overview", "comparison", "significance"),
        }
        for table in made:
            for form, text in renderings(table).items():
                assert not self.RULE.findall(text), (table.name, form)

    def test_the_pattern_finds_the_rule(self) -> None:
        text = " ".join(renderings(gates_table(judge_all(lossy(), default_gates(lossy()))))["latex"].split())
        assert {"2 \\%", "1 \\%", "0.9"} <= set(self.RULE.findall(text))

    def test_the_estimate_and_the_verdict_are_by_its_own_cutoffs(self, tmp_path: Path) -> None:
        (item,) = judged(lossy(), tmp_path, it=UNUSUAL)
        cells = row(gates_table([item]), "it")
        assert item.label == "FAIL"
        assert [cells[name].text for name in ("Estimate", "Finding")] == ["below 8 %", "No interference"]
        assert cells["Confidence"].text == confidence_text(item.found, "FAIL", item.gate.confidence)
        for table in (gates_table([item]), datasets_table([item]), stability_table([item])):
            assert "(PASS from 10 %, FAIL below 8 %, with confidence 0.8)" in table.caption
        assert (
            "it: TIR of joint_r8 against rank_only_r8, PASS from 10 %, FAIL below 8 %, with confidence 0.8; reranking, "
            "nDCG@10 on apidocs." in gates_table([item]).notes
        )


class TestGates:
    def test_a_row_for_each_judged_gate_and_a_note_for_the_others(self, outcomes: Outcomes) -> None:
        table = gates_table(outcomes)
        assert [r[0] for r in texts(table)] == ["kill", "same"]
        assert all(len(r) == len(table.columns) for r in texts(table))
        assert any(note.startswith("gone was not judged: ") and "'joint_<r9>'" in note for note in table.notes)
        assert any("PASS from 2 %, FAIL below 1 %" in note for note in table.notes)
        assert any("differ by at most 1 point" in note for note in table.notes)
        assert "&lt;r9&gt;" in table.to_html()

    def test_registered_gates_and_the_rules_own_are_told_apart(self, tmp_path: Path) -> None:
        found = lossy()
        assert "Registered: yes (it)." in gates_table(judged(found, tmp_path, it=INTERFERENCE)).notes
        found_notes = gates_table(judge_all(found, default_gates(found))).notes
        assert "Registered: no: the default cutoffs (reranking.joint_r8)." in found_notes

    def test_advisory_is_part_of_the_verdict(self, tmp_path: Path) -> None:
        found = clear_gap(-0.1, caveats=["smoke run"])
        table = gates_table(judged(found, tmp_path, it=INTERFERENCE))
        assert row(table, "it")["Finding"].text == "Advisory interference"
        assert "it: advisory, smoke run" in table.notes

    def test_what_cannot_be_decided_says_why(self, tmp_path: Path) -> None:
        table = gates_table(judged(lossy(seeds=1), tmp_path, it=INTERFERENCE))
        cells = row(table, "it")
        assert (cells["Finding"].text, cells["Confidence"].text) == ("Undecided", "–")
        assert any("on apidocs: INCONCLUSIVE, one seed of rank_only_r8 and joint_r8" in note for note in table.notes)
        assert "Intervals hold for other queries, these very runs." in table.notes

    def test_gates_that_hold_for_other_things_are_told_apart(self, tmp_path: Path) -> None:
        """Two notes said of one dataset that its intervals hold for other queries, and for other seeds."""
        seeds = INTERFERENCE | {"estimand": "seeds"}
        outcomes = judged(lossy(), tmp_path, both=INTERFERENCE, fixed=seeds)
        for table in (gates_table(outcomes), datasets_table([item for item in outcomes if isinstance(item, Judgment)])):
            assert "Intervals of both on apidocs hold for other training seeds and other queries." in table.notes
            assert "Intervals of fixed on apidocs hold for other training seeds, these very queries." in table.notes

    def test_unequal_numbers_of_seeds_are_both_named(self, tmp_path: Path) -> None:
        specialist, joint = simulate(5, 60, 0.05, rng=np.random.default_rng(2))
        found = both(specialist[:3], joint)
        assert row(gates_table(judged(found, tmp_path, it=INTERFERENCE)), "it")["Seeds"].text == "3 v 5"
        (line,) = csv.DictReader(io.StringIO(_rows_only(datasets_table(judged(found, tmp_path, it=INTERFERENCE)))))
        assert [line[name] for name in ("Specialist seeds", "Joint seeds", "Paired")] == ["0 1 2", "0 1 2 3 4", "no"]

    def test_a_specialist_that_learnt_nothing_is_a_caveat(self, tmp_path: Path) -> None:
        specialist, joint = simulate(3, 60, 0.3, rng=np.random.default_rng(3))
        found = results(
            measured("rank_only_r8", specialist),
            measured("joint_r8", joint),
            [make_result("zero_shot", None, specialist[0])],
        )
        found_notes = gates_table(judged(found, tmp_path, it=INTERFERENCE)).notes
        assert any(note.startswith("it: But rank_only_r8 has learnt nothing measurable") for note in found_notes)


class TestDatasets:
    def test_a_row_per_dataset_and_one_for_all_of_them(self, tmp_path: Path) -> None:
        a, b = (simulate(3, n, 0.05, rng=np.random.default_rng(n)) for n in (60, 40))
        found = results(
            *(measured("rank_only_r8", s[0], name) for s, name in ((a, "a"), (b, "b"))),
            *(measured("joint_r8", s[1], name) for s, name in ((a, "a"), (b, "b"))),
        )
        (item,) = judged(found, tmp_path, it=INTERFERENCE | {"datasets": ["a", "b"]})
        table = datasets_table([item])
        assert [r[0] for r in texts(table)] == ["a", "b", "all (mean of TIRs)"]
        assert table.groups[0].heading == "it: joint_r8 against rank_only_r8, nDCG@10"
        cells, part = row(table, "a"), item.parts[0]
        assert [cells["Specialist"].value, cells["Joint"].value] == pytest.approx([100 * mean for mean in part.means])
        assert cells["Delta"].value == 100 * part.delta
        assert cells["TIR (%)"].text == shown(item.gate, part.value).removesuffix(" %")
        assert cells["TIR (%)"].spread_value == 100 * part.std if part.std else None
        assert part.estimate.interval
        assert [cells["Low"].value, cells["High"].value] == [100 * end for end in part.estimate.interval]
        assert row(table, "all (mean of TIRs)")["TIR (%)"].value == 100 * item.found.value
        assert any(note.startswith("it: the TIR of mean scores is ") for note in table.notes)

    def test_a_dataset_that_is_added_takes_no_verdict_away(self, tmp_path: Path) -> None:
        a, b = (simulate(3, n, 0.2, rng=np.random.default_rng(n)) for n in (60, 40))
        found = results(
            *(measured(arm, rows, "a") for arm, rows in zip(("rank_only_r8", "joint_r8"), a, strict=True)),
            *(measured(arm, rows[:1], "b") for arm, rows in zip(("rank_only_r8", "joint_r8"), b, strict=True)),
        )
        table = datasets_table(judged(found, tmp_path, it=INTERFERENCE | {"datasets": ["a", "b"]}))
        assert [r[table.columns.index("Finding")] for r in texts(table)] == ["Interference", "Undecided", "Undecided"]

    def test_csv_has_the_confidence_in_each_label_and_the_parts_of_the_variance(self, tmp_path: Path) -> None:
        (item,) = judged(lossy(), tmp_path, it=INTERFERENCE)
        (line,) = csv.DictReader(io.StringIO(_rows_only(datasets_table([item]))))
        held = [float(line[f"Confidence {label}"]) for label in ("PASS", "MARGINAL", "FAIL")]
        assert held == [item.found.confidence[label] for label in ("PASS", "MARGINAL", "FAIL")]
        terms = item.found.estimate.terms
        assert terms
        assert (float(line["Seed share"]), float(line["Query share"])) == terms.shares
        assert float(line["Standard error"]) == 100 * item.found.estimate.standard_error
        assert line["Holds for"] == "other training seeds and other queries"

    def test_differences_have_their_own_heads(self, tmp_path: Path) -> None:
        gate = DIFFERENCE | {"kind": "superiority"}
        (item,) = judged(lossy(), tmp_path, it=gate)
        table = datasets_table([item])
        assert table.columns[2:6] == ("System", "Baseline", "Delta", "Difference")
        assert row(table, "apidocs")["Difference"].value == 100 * item.found.value
        both_kinds = datasets_table(judged(lossy(), tmp_path, it=gate, kill=INTERFERENCE))
        assert both_kinds.columns[2:6] == ("Specialist or system", "Joint or baseline", "Delta", "Value")

    def test_nothing_judged_is_an_empty_table(self) -> None:
        assert (datasets_table(()).groups, seeds_table(()).groups) == ((), ())


class TestSeeds:
    def test_every_run_has_its_score_and_shared_seeds_a_value(self, tmp_path: Path) -> None:
        """TIR by seed: (.5 - .4) / .5 = 20 % and (.6 - .6) / .6 = 0."""
        spread = np.linspace(-0.1, 0.1, 10)
        found = both(0.5 + spread + np.array([[0.0], [0.1]]), 0.4 + spread + np.array([[0.0], [0.2], [0.1]]))
        table = seeds_table(judged(found, tmp_path, it=INTERFERENCE))
        assert table.groups[0].heading == "it: joint_r8 against rank_only_r8, nDCG@10, apidocs (10 queries)"
        assert texts(table) == [
            ["0", "50.00", "40.00", "+20.00"],
            ["1", "60.00", "60.00", "0.00"],
            ["2", "–", "50.00", "–"],
            ["mean", "55.00", "50.00", "+10.00"],
        ]
        assert row(table, "mean")["TIR (%)"].spread == f"{20 / 2**0.5:.2f}"

    def test_an_arm_without_seeds_has_one_row(self, tmp_path: Path) -> None:
        specialist, joint = simulate(2, 20, 0.05, rng=np.random.default_rng(2))
        found = results([make_result("bm25", None, specialist[0])], measured("joint_r8", joint))
        gate = DIFFERENCE | {"kind": "superiority", "baseline": "bm25"}
        table = seeds_table(judged(found, tmp_path, it=gate))
        assert [r[0] for r in texts(table)] == ["none", "0", "1", "mean"]
        assert [r[3] for r in texts(table)] == ["–"] * 4


def test_stability_starts_with_nothing_left_out(outcomes: Outcomes) -> None:
    table = stability_table(judgments_of(outcomes))
    assert [group.heading for group in table.groups] == ["kill", "same"]
    assert [r[0].text for r in table.groups[0].rows] == [
        "nothing",
        *(f"{arm} seed {seed}" for arm in ("rank_only_r8", "joint_r8") for seed in range(3)),
    ]
    assert all(cell.text for cell in table.groups[1].rows[2])


def test_what_would_settle_it_or_that_it_is_settled(outcomes: Outcomes, tmp_path: Path) -> None:
    table = power_table(judgments_of(outcomes))
    assert [r[:2] for r in texts(table)] == [["kill", "3 x 60"], ["same", "3 x 60"]]
    assert all(len(r) == len(table.columns) for r in texts(table))
    settled = power_table(judged(lossy(0.3), tmp_path, it=INTERFERENCE))
    assert texts(settled)[0][2:5] == ["settled"] * 3


def test_one_seed_and_no_variance_have_no_plan(tmp_path: Path) -> None:
    found = judged(lossy(seeds=1), tmp_path, it=INTERFERENCE)
    assert (power_table(found).groups, stability_table(found).groups) == ((), ())
    constant = judged(constant_gap(-0.1), tmp_path, it=DIFFERENCE | {"kind": "superiority"})
    assert power_table(constant).groups == ()
    assert row(gates_table(constant), "it")["Finding"].text == "Undecided"


def _rows_only(table: Table) -> str:
    return "\n".join(line for line in table.to_csv().splitlines() if not line.lstrip('"').startswith("# "))
