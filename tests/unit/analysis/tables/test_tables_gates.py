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


class TestDatasets:
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
