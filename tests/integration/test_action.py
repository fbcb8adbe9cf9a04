"""The GitHub Action's steps and ``scripts/slurm.sh``, run as on their machines, with stubs of other programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.results import write_experiment
from support.scripts import SCRIPTS

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
PATCH = "PATCH repos/owner/name/issues/comments/41"

GH = """#!/bin/bash
printf '%s\\n' "$*" >>"$RUNNER_TEMP/asked"
case "$*" in
  *viewer*) printf '%s\\n' "$TOKEN_USER"; [[ -n $TOKEN_USER ]];;
  *--paginate*) printf '%b' "$COMMENTS";;
esac
"""


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a step: files of the runner, and the programs that it finds."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"gh": GH, "python": f'#!/bin/bash\nexec "{sys.executable}" "$@"\n'}.items():
        (programs / name).write_text(text, "utf-8")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GITHUB_REPOSITORY": "owner/name",
    }


def take(
    step: str, runner: Mapping[str, str], values: Mapping[str, str], checkout: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a step by the shell that GitHub gives it, in a checkout, its expressions replaced by ``values``."""
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
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )


def judge(
    runner: Mapping[str, str], folder: Path | str, gates: str = "", checkout: Path | None = None
) -> tuple[int, str]:
    """Judge a folder; return the job's exit code and its summary."""
    done = take("Judge", runner, {"inputs.output-dir": str(folder), "inputs.gates": gates}, checkout)
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


@pytest.mark.skipif(shutil.which("localedef") is None, reason="no localedef, which makes a locale without UTF-8")
def test_names_are_in_the_summary_whatever_the_locale_of_the_runner(runner: dict[str, str], tmp_path: Path) -> None:
    made = tmp_path / "locales" / "latin"
    made.parent.mkdir()
    subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", made], capture_output=True, check=False)
    runner |= {"LOCPATH": str(made.parent), "LC_ALL": made.name}
    asked = [sys.executable, "-I", "-c", "import sys; print(sys.stdout.encoding)"]
    encoding = subprocess.run(asked, env=runner, capture_output=True, text=True, check=True).stdout.strip()
    assert encoding.lower() == "iso8859-1", "there is such a locale"
    write_experiment(tmp_path / "results", arms=("rank_only_é", "joint_é"), tir=0.12, logs=False)
    ended, summary = judge(runner, tmp_path / "results")
    assert ended == 0
    assert "joint_é loses" in summary


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A checkout that holds modules by the names of what the steps import; to import one ends the process."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pip", "json", "os", "pathlib", "unimoe", "sitecustomize", "usercustomize"):
        (checkout / f"{name}.py").write_text('raise SystemExit("imported from the checkout")\n', "utf-8")
    return checkout


def test_modules_of_the_checkout_are_not_imported_when_it_judges(
    runner: dict[str, str], tmp_path: Path, hostile: Path
) -> None:
    write_experiment(hostile / "results", tir=0.12, logs=False)
    ended, summary = judge(runner, "results", checkout=hostile)
    assert ended == 0
    assert "INTERFERENCE (gate: PASS" in summary


def test_modules_of_the_checkout_are_not_imported_when_it_installs(
    runner: dict[str, str], tmp_path: Path, hostile: Path
) -> None:
    """A real pip installs a wheel without code, which needs no index."""
    venv.create(tmp_path / "venv", with_pip=True)
    wheel = tmp_path / "nothing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nothing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        archive.writestr("nothing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("nothing-1.dist-info/RECORD", "")
    runner["PATH"] = f"{tmp_path / 'venv' / 'bin'}:{runner['PATH']}"
    done = take("Install", runner, {"github.action_path": str(wheel)}, hostile)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "venv").rglob("nothing-1.dist-info"))


MARKER = "<!-- unimoe verdict -->\\n### unimoe"
POST = "POST repos/owner/name/issues/7/comments"
BOT = "github-actions[bot]"


@pytest.mark.parametrize(
    ("user", "comments", "asked"),
    [
        (BOT, "", POST),
        (BOT, f"41\t{BOT}\t{MARKER}\n", PATCH),
        (BOT, f"40\tmallory\t{MARKER}\n41\t{BOT}\t{MARKER}\n42\t{BOT}\t{MARKER}\n", PATCH),
        (BOT, f"40\tmallory\t{MARKER}\n43\t{BOT}\tsee {MARKER}\n", POST),
        ("releases[bot]", f"40\t{BOT}\t{MARKER}\n41\treleases[bot]\t{MARKER}\n", PATCH),
        ("", f"40\tmallory\t{MARKER}\n41\t{BOT}\t{MARKER}\n", PATCH),  # a token that may not ask whose it is
    ],
)
def test_a_pull_request_has_one_comment_which_is_the_actions_own(
    runner: dict[str, str], user: str, comments: str, asked: str
) -> None:
    runner |= {"TOKEN_USER": user, "COMMENTS": comments}
    values = {"inputs.token": "none", "github.event.number": "7"}
    assert take("Comment", runner, values).returncode == 0
    last = Path(runner["RUNNER_TEMP"], "asked").read_text("utf-8").splitlines()[-1]
    assert last == f"api --method {asked} --field body=@{runner['RUNNER_TEMP']}/verdicts.md"


def test_no_shell_step_holds_an_expression() -> None:
    """An expression in a step's text would let names from a pull request run as commands."""
    for step in STEPS.values():
        assert "${{" not in step["run"]


SCONTROL = """#!/usr/bin/env bash
[[ "$1 $2" == "show hostnames" && $3 == "$SLURM_JOB_NODELIST" ]] || exit 1
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do echo "node$node"; done
"""

HOSTNAME = """#!/usr/bin/env bash
[[ $1 == -I ]] && echo "192.0.2.$((10 + SLURM_NODEID)) 10.0.0.$SLURM_NODEID "
"""

SRUN = """#!/usr/bin/env bash
known=" --nodes --ntasks --nodelist --cpus-per-task "
first=0 last=$((SLURM_JOB_NUM_NODES - 1)) worst=0
while [[ $1 == --* ]]; do
  [[ $1 == --nodelist ]] && first=${2#node} && last=$first
  [[ $1 == --cpus-per-task && $2 != 16 ]] && exit 1
  if [[ $known == *" $1 "* ]]; then shift 2; else echo "$1" >>"$LOGS/flags"; shift; fi
done
for ((node = last; node >= first; node--)); do
  SLURM_NODEID=$node "$@" || { code=$?; ((code > worst)) && worst=$code; }
done
exit "$worst"
"""

# Starts nothing: as Ray does, runs on the first node what comes behind the dashes.
RAY = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"$LOGS/ray-$SLURM_NODEID"
while [[ $1 != -- ]]; do shift; done
((SLURM_NODEID > 0)) || exec "${@:2}"
"""

UNIMOE = """#!/usr/bin/env bash
printf '%s\\n' "$@"
exit "$ENDS_WITH"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with the programs of a cluster in ``bin``."""
    (tmp_path / "bin").mkdir()
    stubs = {"scontrol": SCONTROL, "hostname": HOSTNAME, "srun": SRUN, "ray": RAY, "unimoe": UNIMOE}
    for name, text in stubs.items():
        (tmp_path / "bin" / name).write_text(text, "utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def submit(folder: Path, nodes: int, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the script as ``sbatch --nodes`` does on the first node."""
    environment = {
        "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": f"node[0-{nodes - 1}]",
        "SLURM_CPUS_ON_NODE": "16",
        "LOGS": str(folder),
        "ENDS_WITH": str(code),
    }
    command = ["bash", str(SCRIPTS / "slurm.sh"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


ASKED = ["evaluate", "--checkpoint", "outputs/a b/*/checkpoint", "--eval-tier", "full", "--store", "/shared/store"]


def test_every_node_joins_one_cluster_and_the_exit_code_is_that_of_the_first_ones_command(slurm: Path) -> None:
    symmetric_run = pytest.importorskip("ray.scripts.symmetric_run", reason="needs Ray: uv sync --extra cluster")
    job = submit(slurm, 3, *ASKED, code=4)
    assert job.returncode == 4, job.stderr
    given = [*ASKED, "--engine", "ray", "--address", "auto"]
    for node in range(3):
        name, *words = (slurm / f"ray-{node}").read_text("utf-8").splitlines()
        read = symmetric_run.symmetric_run.make_context(name, words[:]).params
        assert (name, read["address"], read["min_nodes"]) == ("symmetric-run", "192.0.2.10:24711", 3)
        assert words[words.index("--") + 1 :] == ["unimoe", *given]
    assert job.stdout.splitlines() == given
    assert (slurm / "flags").read_text("utf-8").split() == ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]


def test_without_a_command_it_says_how_it_is_used(slurm: Path) -> None:
    job = submit(slurm, 2)
    assert (job.returncode, job.stdout) == (2, "")
    assert job.stderr.startswith("usage: sbatch ")
