from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import DIFFERENCE, INTERFERENCE, both, constant_gap, gate_file, measured, results
from support.results import simulate
from support.tables import row, texts

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.wording import shown
from unimoe.analysis.tables.gates import datasets_table, gates_table, power_table, stability_table
from unimoe.results.folder import Results

Outcomes = tuple[Judgment | Refusal, ...]


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


class TestGates:
    def test_a_row_for_each_judged_gate_and_a_note_for_the_others(self, outcomes: Outcomes) -> None:
        table = gates_table(outcomes)
        assert [r[0] for r in texts(table)] == ["kill", "same"]
        assert all(len(r) == len(table.columns) for r in texts(table))
        assert any(note.startswith("gone was not judged: ") and "'joint_<r9>'" in note for note in table.notes)
        assert any("PASS from 2 %, FAIL below 1 %" in note for note in table.notes)
        assert any("differ by at most 1 point" in note for note in table.notes)
        assert "&lt;r9&gt;" in table.to_html()


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


def test_one_seed_and_no_variance_have_no_plan(tmp_path: Path) -> None:
    found = judged(lossy(seeds=1), tmp_path, it=INTERFERENCE)
    assert (power_table(found).groups, stability_table(found).groups) == ((), ())
    constant = judged(constant_gap(-0.1), tmp_path, it=DIFFERENCE | {"kind": "superiority"})
    assert power_table(constant).groups == ()
    assert row(gates_table(constant), "it")["Finding"].text == "Undecided"
