"""Every output of one analysis says the same: the gate's cutoffs, its label, its numbers, and no other."""

from __future__ import annotations

import html
import json
import re

import pytest
from support.gates import INTERFERENCE, gate_file
from support.results import write_experiment
from support.scripts import call_script

UNUSUAL = {"pass_at": 0.137, "fail_below": 0.113, "confidence": 0.77}
"""Cutoffs that no default has."""

LABELS = {"PASS", "FAIL", "MARGINAL", "INCONCLUSIVE"}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that an analysis says, by where it says it."""
    folder = tmp_path_factory.mktemp("outputs")
    write_experiment(folder, tir=0.044, queries=300)
    embedding = INTERFERENCE | {"task": "embedding", "specialist": "emb_only_r8"}
    gate_file(folder, rank=INTERFERENCE | UNUSUAL, embed=embedding | UNUSUAL)
    whole = call_script("analyze_results.py", "--output-dir", folder, "--iterations", "200")
    verdicts = call_script("analyze_results.py", "verdicts", "--output-dir", folder)
    machines = call_script("analyze_results.py", "verdicts", "--output-dir", folder, "--json")
    assert (whole.returncode, verdicts.returncode, machines.returncode) == (0, 10, 10), whole.stderr
    said = {"analyze": whole.stdout, "verdicts": verdicts.stdout, "json": machines.stdout}
    for path in (folder / "analysis").rglob("*"):
        if path.suffix in {".md", ".tex", ".csv"}:
            said[path.name] = path.read_text(encoding="utf-8").replace("\\", "")
    page = (folder / "analysis" / "report.html").read_text(encoding="utf-8")
    visible = re.sub(r"<style>.*?</style>|<script(?! type=\"application/json\").*?</script>", "", page, flags=re.DOTALL)
    said["report.html"] = html.unescape(re.sub(r"<[^>]+>", " ", visible)).replace("\N{NO-BREAK SPACE}", " ")
    without_bm25 = {where: text.replace("bm25s(k1=0.9,b=0.4)", "bm25s") for where, text in said.items()}
    return {where: " ".join(text.split()) for where, text in without_bm25.items()}


def test_the_walk_covers_every_kind_of_output(outputs: dict[str, str]) -> None:
    assert {"analyze", "verdicts", "json", "report.html", "report.md", "gates.tex", "gates.csv"} <= set(outputs)
    assert re.search(r"FAIL below 11.3 % \| MARGINAL \| PASS from 13.7 %", outputs["report.html"]), (
        "the forest figure's regions"
    )


def test_no_output_names_a_cutoff_that_is_not_the_gates_own(outputs: dict[str, str]) -> None:
    for where, text in outputs.items():
        foreign = re.findall(r"(?<![\d.])(?:2|1) ?%|(?<![\d.])(?:2|1) \\%|(?<!\d)0?\.90?(?![\d])", text)
        assert not foreign, (where, foreign)


def test_no_output_gives_another_label(outputs: dict[str, str]) -> None:
    for where, text in outputs.items():
        explained = re.sub(
            r"[^.;:]*INCONCLUSIVE\)?(: these seeds and queries cannot decide| where none does)", "", text
        )
        for label in re.findall(r"\b[A-Z]{4,}\b", explained):
            assert label not in LABELS - {"FAIL", "PASS", "MARGINAL"}, (where, label)
    assert "NO INTERFERENCE: rank (gate: FAIL, keep the joint model) joint_r8 loses" in outputs["verdicts"]
    assert {gate["label"] for gate in json.loads(outputs["json"])["gates"]} == {"FAIL"}


def test_every_output_shows_the_same_estimate_and_interval(outputs: dict[str, str]) -> None:
    rank = next(gate for gate in json.loads(outputs["json"])["gates"] if gate["name"] == "rank")
    low, value, high = (f"{100 * rank['interval'][key]:+.2f}" for key in ("low", "value", "high"))
    for where in ("verdicts", "analyze", "report.html", "report.md"):
        assert f"{value} % [{low}, {high}]" in outputs[where], where
    table = outputs["datasets.md"].replace("−", "-")
    assert all(number in table for number in (value, low, high))


def test_nothing_is_called_confirmed_and_no_zero_is_negative(outputs: dict[str, str]) -> None:
    for where, text in outputs.items():
        assert "confirmed" not in text, where
        assert not re.search(r"[-−]0\.00(?!\d)", text), where
