"""The ``unimoe`` command itself: its help, its version, and modules that a user imports for one call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from support.results import write_experiment
from typer.testing import CliRunner

import unimoe
from unimoe.cli.app import app
from unimoe.cli.help import FIRST_OPTIONS

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def shown(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments)).stdout


def test_help_lists_each_command_in_a_group_with_its_whole_summary() -> None:
    text = shown("--help")
    groups = ["Compare and judge (light install):", "Train and evaluate:", "Practical:", "Studies:"]
    places = [text.index(group) for group in groups]
    assert places == sorted(places)
    assert "..." not in text[places[0] :]
    assert places[1] < text.index("\n  run ") < places[2]
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert shown("--version") == f"unimoe {unimoe.__version__}\n"


@pytest.mark.parametrize("command", FIRST_OPTIONS)
def test_help_lists_the_options_that_people_use_first(command: str) -> None:
    first, _, others = shown(command, "--help").partition("More options:")
    names = {param.name: param.opts[0] for param in COMMANDS[command].params}
    assert set(FIRST_OPTIONS[command]) < set(names)
    for name, option in names.items():
        assert (f"\n  {option} " in first) == (name in FIRST_OPTIONS[command])
        assert (f"\n  {option} " in others) == (name not in FIRST_OPTIONS[command])


def test_a_module_of_the_folder_registers_a_measure_for_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    monkeypatch.chdir(tmp_path)
    Path("own_measure_1.py").write_text(
        "import unimoe.metrics as m\n\nm.register_measure('answers', lambda grades, ids: float(len(ids)))\n",
        encoding="utf-8",
    )
    Path("q.txt").write_text("q1 0 d1 1\n", encoding="utf-8")
    Path("r.trec").write_text("q1 Q0 d1 1 2.0 x\nq1 Q0 d2 2 1.0 x\n", encoding="utf-8")
    text = shown("--import", "own_measure_1", "evaluate-run", "r.trec", "q.txt", "--metric", "answers")
    assert ("answers" in text, "2.0" in text) == (True, True)


def test_status_shows_what_an_experiment_of_this_machine_has_done(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    log = tmp_path / "joint_r8" / "seed_7" / "logs" / "train.jsonl"
    log.parent.mkdir(parents=True)
    records = "".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in (1, 2, 2))
    log.write_text(records + '{"step": 3, "lo', encoding="utf-8")  # of a killed training that was resumed once
    lines = shown("status", str(tmp_path)).splitlines()
    assert "joint_r8, seed_7  2 steps so far" in lines
    assert any(line.startswith("joint_r8, seed_0") and "reranking/apidocs ndcg@10 0." in line for line in lines)
    found = json.loads(shown("status", str(tmp_path), "--json"))
    assert found["joint_r8, seed_7"] == {"steps": 2, "trained": False, "results": {}}
