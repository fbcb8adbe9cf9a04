"""A look ahead, or results unfit for decisions: never a pass, never a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.gates import INTERFERENCE, clear_gap, register

from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge, judge_all
from unimoe.analysis.gates.output import gate_lines, gates_as_json


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


def test_another_number_of_seeds_than_registered_is_advisory(tmp_path: Path) -> None:
    unasked = only(tmp_path, advisory=False, seeds=[0, 1, 2, 3, 4])
    assert isinstance(unasked, Judgment)
    assert unasked.advisory == ("no result yet of seed 3, 4: judged at another number of seeds than registered",)
    looked = only(tmp_path, seeds=[0, 1, 2, 3, 4])
    assert isinstance(looked, Judgment)
    assert looked.found.seeds == ((0, 1, 2), (0, 1, 2))
    assert looked.advisory[1] == "no result yet of seed 3, 4"


def test_results_unfit_for_decisions_neither_pass_nor_stop(tmp_path: Path) -> None:
    registration = register(tmp_path, **INTERFERENCE)
    smoke = judge(clear_gap(-0.1, caveats=["smoke run"]), registration, "it")
    assert (smoke.label, smoke.advisory, exit_code([smoke])) == ("PASS", ("smoke run",), 12)
    cut = judge(clear_gap(-0.1, identity={"max_queries": 4}), registration, "it")
    assert (cut.advisory, exit_code([cut])) == (("4 queries of a larger set",), 12)


def test_it_is_said_in_text_and_in_json(tmp_path: Path) -> None:
    registration = register(tmp_path, **INTERFERENCE)
    outcomes = judge_all(clear_gap(-0.1, caveats=["smoke run"]), registration)
    text = gate_lines(registration, outcomes)
    assert "INTERFERENCE: it (gate: ADVISORY PASS, decides nothing)" in text
    assert "Advisory smoke run: this neither passes nor stops a project" in " ".join(text.split())
    said = gates_as_json(registration, outcomes, outcomes)
    assert (said["exit_code"], said["gates"][0]["advisory"]) == (12, ["smoke run"])
