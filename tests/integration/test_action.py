"""The GitHub Action's steps and ``scripts/slurm.sh``, run as on their machines, with stubs of other programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
  if [[ $known == *" $1 "* ]]; then shift 2; else echo "$1" >>"$SRUN_FLAGS"; shift; fi
done
for ((node = last; node >= first; node--)); do
  SLURM_NODEID=$node "$@" || { code=$?; ((code > worst)) && worst=$code; }
done
exit "$worst"
"""

# Ray's own command, for which nothing is started; the options of `ray start` are read by Ray's own reader.
RAY = """#!{python}
import json, os, socket, subprocess, sys
from collections import namedtuple
from ray.scripts import scripts, symmetric_run

Address = namedtuple("Address", ["family", "address"])
node, run = int(os.environ["SLURM_NODEID"]), subprocess.run
log = []

def play(command, **options):
    log.append(command)
    if command[:2] == ["ray", "start"]:
        scripts.start.make_context("start", command[2:], resilient_parsing=False)
    elif command[0] != "ray":
        return run(command, **options)

assert sys.argv[1] == "symmetric-run"
symmetric_run.check_ray_already_started = lambda: False
symmetric_run.check_cluster_ready = lambda nodes: log.append(["wait", nodes]) or True
symmetric_run.check_head_node_ready = lambda address: True
symmetric_run.psutil.net_if_addrs = lambda: {{"eth0": [Address(socket.AF_INET, f"192.0.2.{{10 + node}}")]}}
symmetric_run.subprocess.run = play
try:
    symmetric_run.symmetric_run.main(sys.argv[2:], standalone_mode=False)
finally:
    with open(os.environ["RAY_LOG"], "a") as file:
        file.write(json.dumps([node, log]) + chr(10))
"""

UNIMOE = """#!{python}
import os, sys
print("<" + "|".join(sys.argv[1:]) + ">")
sys.exit(int(os.environ["ENDS_WITH"]))
"""


class Job(NamedTuple):
    """How a job ended."""

    code: int
    stdout: str
    stderr: str
    flags: list[str]
    nodes: dict[int, list[Any]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of a cluster in ``bin``."""
    pytest.importorskip("ray", reason="needs Ray: uv sync --extra cluster")
    stubs = {"scontrol": SCONTROL, "hostname": HOSTNAME, "srun": SRUN, "ray": RAY, "unimoe": UNIMOE}
    for name, text in stubs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(python=sys.executable) if "{python}" in text else text, "utf-8")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(folder: Path, nodes: int, *arguments: str, code: int = 0) -> Job:
    """Run the script as ``sbatch --nodes`` does on the first node."""
    of_job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_CPUS_ON_NODE": "16"}
    path = {"PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin", "ENDS_WITH": str(code)}
    environment = {**path, **of_job, "SLURM_JOB_NODELIST": f"node[0-{nodes - 1}]"}
    environment |= {"SRUN_FLAGS": str(folder / "flags"), "RAY_LOG": str(folder / "log")}
    command = ["bash", str(SCRIPTS / "slurm.sh"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    flags = (folder / "flags").read_text("utf-8").split() if (folder / "flags").exists() else []
    lines = (folder / "log").read_text("utf-8").splitlines() if (folder / "log").exists() else []
    return Job(done.returncode, done.stdout, done.stderr, flags, dict(map(json.loads, lines)))


ASKED = ["evaluate", "--checkpoint", "outputs/a b/*/checkpoint", "--eval-tier", "full", "--store", "/shared/store"]


def test_the_first_node_runs_the_command_and_the_others_join_it(slurm: Path) -> None:
    job = submit(slurm, 3, *ASKED)
    assert job.code == 0, job.stderr
    assert sorted(job.nodes) == [0, 1, 2]
    address = ["--node-ip-address=192.0.2.10", "--port=24711"]
    given = ["unimoe", *ASKED, "--engine", "ray", "--address", "auto"]
    assert job.nodes[0] == [["ray", "start", "--head", *address], ["wait", 3], given, ["ray", "stop"]]
    for node in (1, 2):
        join = ["ray", "start", "--address", "192.0.2.10:24711", "--block"]
        assert job.nodes[node] == [join, ["ray", "stop"]]
    assert job.stdout.count(f"<{'|'.join(given[1:])}>") == 1
    assert job.flags == ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]


def test_one_node_is_a_cluster_as_well_and_the_exit_code_is_the_commands(slurm: Path) -> None:
    job = submit(slurm, 1, *ASKED, code=4)
    assert job.code == 4, job.stderr
    assert [command[:2] for command in job.nodes[0]] == [["ray", "start"], ["unimoe", "evaluate"], ["ray", "stop"]]


def test_without_a_command_it_says_how_it_is_used(slurm: Path) -> None:
    job = submit(slurm, 2)
    assert (job.code, job.nodes) == (2, {})
    assert job.stderr.startswith("usage: sbatch ")
