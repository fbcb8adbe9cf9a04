"""A look ahead, or results unfit for decisions: never a pass, never a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.gates import INTERFERENCE, clear_gap, register

from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge, judge_all


def only(folder: Path, *, advisory: bool = True, **change: Any) -> Judgment | Refusal:
    """The gate with a change, judged on three seeds of apidocs at a TIR of 20 %."""
    (outcome,) = judge_all(clear_gap(-0.1), register(folder, **INTERFERENCE | change), advisory=advisory)
    return outcome


def test_datasets_without_results_are_refused_unless_a_look_is_asked_for(tmp_path: Path) -> None:
    datasets = ["apidocs", "scifact", "fiqa"]
    refused = only(tmp_path, advisory=False, datasets=datasets)
    assert isinstance(refused, Refusal)
    assert exit_code([refused]) == 3
    looked = only(tmp_path, datasets=datasets)
    assert isinstance(looked, Judgment)
    assert (looked.label, exit_code([looked])) == ("PASS", 12)
    assert looked.gate.datasets == ["apidocs"]
    assert looked.advisory == ("a look ahead was asked for", "no result yet on scifact, fiqa")


def test_results_unfit_for_decisions_neither_pass_nor_stop(tmp_path: Path) -> None:
    registration = register(tmp_path, **INTERFERENCE)
    smoke = judge(clear_gap(-0.1, caveats=["smoke run"]), registration, "it")
    assert (smoke.label, smoke.advisory, exit_code([smoke])) == ("PASS", ("smoke run",), 12)
    cut = judge(clear_gap(-0.1, identity={"max_queries": 4}), registration, "it")
    assert (cut.advisory, exit_code([cut])) == (("4 queries of a larger set",), 12)
