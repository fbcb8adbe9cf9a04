"""The GitHub Action's shell steps, run as a runner does, with a ``gh`` that writes down what it was asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.results import write_experiment

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
PATCH = "PATCH repos/owner/name/issues/comments/41"
GH = """#!/bin/bash
printf '%s\\n' "$*" >>"$RUNNER_TEMP/asked"
case "$*" in *--paginate*) printf '%s' "$OLD_COMMENT";; esac
"""


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a step: files of the runner, and the programs that it finds."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"gh": GH, "unimoe": f'#!/bin/bash\nexec "{sys.executable}" -m unimoe "$@"\n'}.items():
        (programs / name).write_text(text, "utf-8")
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GITHUB_REPOSITORY": "owner/name",
    }


def take(step: str, runner: Mapping[str, str], values: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step by the shell that GitHub gives it, its expressions replaced by ``values``."""
    env = {
        key: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)
        for key, text in STEPS[step].get("env", {}).items()
    }
    shell = shutil.which("bash")
    assert shell is not None
    assert STEPS[step]["shell"] == "bash"
    return subprocess.run(
        [shell, "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
        env={**runner, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def judge(runner: Mapping[str, str], folder: Path | str, gates: str = "") -> tuple[int, str]:
    """Judge a folder; return the job's exit code and its summary."""
    done = take("Judge", runner, {"inputs.output-dir": str(folder), "inputs.gates": gates})
    assert done.returncode == 0, done.stderr
    outputs = dict(line.split("=", 1) for line in Path(runner["GITHUB_OUTPUT"]).read_text("utf-8").splitlines())
    assert Path(outputs["json"]).is_file()
    ended = take("Exit", runner, {"steps.judge.outputs.exit-code": outputs["exit-code"]})
    return ended.returncode, Path(runner["GITHUB_STEP_SUMMARY"]).read_text("utf-8")


@pytest.mark.parametrize(
    ("tir", "gates", "code", "says"),
    [
        (0.12, "", 0, "INTERFERENCE (gate: PASS, build separate experts): reranking.joint_r8\n  joint_r8 loses"),
        (-0.2, "", 10, "NO INTERFERENCE (gate: FAIL, "),
        (0.12, "no such file.yaml", 3, "no such file.yaml"),
        (None, "", 3, "no results here"),
    ],
)
def test_the_finding_is_in_the_summary_and_the_code_is_that_of_verdicts(
    runner: dict[str, str], tmp_path: Path, tir: float | None, gates: str, code: int, says: str
) -> None:
    if tir is not None:
        write_experiment(tmp_path / "my results", tir=tir, logs=False)
    ended, summary = judge(runner, tmp_path / "my results", gates)
    assert ended == code
    assert f"### unimoe: exit code {code}\n" in summary
    assert says in summary


@pytest.mark.parametrize(("old", "asked"), [("", "POST repos/owner/name/issues/7/comments"), ("41\n", PATCH)])
def test_a_pull_request_has_one_comment(runner: dict[str, str], old: str, asked: str) -> None:
    runner["OLD_COMMENT"] = old
    values = {"inputs.token": "none", "github.event.number": "7"}
    assert take("Comment", runner, values).returncode == 0
    last = Path(runner["RUNNER_TEMP"], "asked").read_text("utf-8").splitlines()[-1]
    assert last == f"api --method {asked} --field body=@{runner['RUNNER_TEMP']}/verdicts.md"


def test_no_shell_step_holds_an_expression() -> None:
    """An expression in a step's text would let names from a pull request run as commands."""
    for step in STEPS.values():
        assert "${{" not in step["run"]
