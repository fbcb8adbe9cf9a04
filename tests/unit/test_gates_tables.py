from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import DIFFERENCE, INTERFERENCE, both, constant_gap, gate_file
from support.results import simulate

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.tables import gates_table, power_table, stability_table
from unimoe.analysis.tables import Table


@pytest.fixture
def outcomes(tmp_path: Path) -> tuple[Judgment | Refusal, ...]:
    gates: dict[str, dict[str, Any]] = {
        "kill": INTERFERENCE,
        "same": DIFFERENCE | {"kind": "equivalence"},
        "gone": INTERFERENCE | {"joint": "joint_<r9>"},
    }
    found = both(*simulate(3, 60, 0.0, rng=np.random.default_rng(1)))
    return judge_all(found, load_gates(gate_file(tmp_path, registered="2026-01-01", **gates)))


def cells(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for group in table.groups for row in group.rows]


def test_a_row_for_each_judged_gate_and_a_note_for_the_others(outcomes: tuple[Judgment | Refusal, ...]) -> None:
    table = gates_table(outcomes)
    assert [row[0] for row in cells(table)] == ["kill", "same"]
    assert all(len(row) == len(table.columns) for row in cells(table))
    assert any(note.startswith("gone was not judged: ") and "'joint_<r9>'" in note for note in table.notes)
    assert any("PASS from 2 %, FAIL below 1 %" in note for note in table.notes)
    assert any("differ by at most 1 point" in note for note in table.notes)
    assert "&lt;r9&gt;" in table.to_html()


def test_advisory_stands_beside_the_label(tmp_path: Path) -> None:
    found = both([[0.6] * 4] * 2, [[0.5] * 4] * 2, caveats=["smoke run"])
    table = gates_table(judge_all(found, load_gates(gate_file(tmp_path, it=INTERFERENCE))))
    assert cells(table)[0][table.columns.index("With confidence")] == "ADVISORY PASS"
    assert "it: advisory, smoke run" in table.notes


def test_stability_starts_with_nothing_left_out(outcomes: tuple[Judgment | Refusal, ...]) -> None:
    table = stability_table(outcomes)
    assert [group.heading for group in table.groups] == ["kill", "same"]
    assert [row[0].text for row in table.groups[0].rows] == ["nothing", "seed 0", "seed 1", "seed 2"]
    assert len(table.notes) == 2


def test_what_would_settle_it_or_that_it_is_settled(outcomes: tuple[Judgment | Refusal, ...], tmp_path: Path) -> None:
    table = power_table(outcomes)
    assert [row[:2] for row in cells(table)] == [["kill", "3 x 60"], ["same", "3 x 60"]]
    assert all(len(row) == len(table.columns) for row in cells(table))
    settled = power_table(judge_all(constant_gap(-0.1), load_gates(gate_file(tmp_path, it=INTERFERENCE))))
    assert cells(settled)[0][2:5] == ["settled"] * 3


def test_one_seed_has_no_plan_and_an_empty_table(tmp_path: Path) -> None:
    found = judge_all(constant_gap(-0.1, seeds=1), load_gates(gate_file(tmp_path, it=INTERFERENCE)))
    assert power_table(found).groups == ()
    assert stability_table(found).groups == ()
