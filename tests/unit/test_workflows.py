"""The workflows and the action: what they call exists, what they use is pinned, and what they may do is stated."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "action.yml"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
EXTRAS = set(PROJECT["project"]["optional-dependencies"])
GROUPS = set(PROJECT["dependency-groups"])
SCRIPT = re.compile(r"(?<![\w/.$])((?:\.ci|scripts|benchmarks|docs)/[\w./-]+)")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(path.read_text("utf-8"))
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow; of the action its steps alone."""
    content = read(path)
    return content["jobs"] if "jobs" in content else {"action": content["runs"]}


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def missing(text: str) -> list[str]:
    """What shell code calls that is not there: targets, scripts, extras, groups, commands."""
    lacking = [f"make {name}" for name in re.findall(r"\bmake ([a-z-]+)", text) if name not in TARGETS]
    lacking += [path for path in SCRIPT.findall(text) if not (ROOT / path).exists() and path not in WRITTEN]
    lacking += [f"--extra {name}" for name in re.findall(r"--extra[ =]([\w-]+)", text) if name not in EXTRAS]
    lacking += [f"--group {name}" for name in re.findall(r"--(?:only-)?group[ =]([\w-]+)", text) if name not in GROUPS]
    for names in re.findall(r"\.\[([\w,]+)\]", text):
        lacking += [f".[{name}]" for name in names.split(",") if name not in EXTRAS]
    commands = re.findall(r"(?:uvx --from \.|-m|uv run) unimoe ([a-z][a-z-]*)", text)
    return lacking + [f"unimoe {name}" for name in commands if name not in COMMANDS]


WRITTEN = {"benchmarks/history.jsonl"}
"""What a called script writes."""
COMMANDS = {path.stem.replace("_", "-") for path in (ROOT / "src" / "unimoe" / "cli").glob("*.py")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_workflow_calls_exists(path: Path) -> None:
    code = [step["run"] for step in steps(path) if "run" in step]
    assert code
    assert missing("\n".join(code)) == []


@pytest.mark.parametrize("path", [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh")])
def test_what_they_call_in_turn_exists(path: Path) -> None:
    assert missing(path.read_text("utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    text = "make fly\nscripts/fly.py\nuv sync --extra fly --group fly\nuv pip install '.[fly]'\nuvx --from . unimoe fly"
    assert missing(text) == ["make fly", "scripts/fly.py", "--extra fly", "--group fly", ".[fly]", "unimoe fly"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_with_its_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", use) for use in used), used
    lines = re.findall(r"uses: (\S+)(.*)", path.read_text("utf-8"))
    assert [use for use, _ in lines] == used
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", comment) for _, comment in lines), lines


def test_one_action_has_one_commit_everywhere() -> None:
    pinned = {tuple(step["uses"].split("@")) for path in FILES for step in steps(path) if "uses" in step}
    assert len({name for name, _ in pinned}) == len(pinned), sorted(pinned)


def written(permissions: dict[str, str]) -> set[str]:
    return {name for name, level in permissions.items() if level == "write"}


MAY_WRITE = {
    ("release.yml", "publish"): {"id-token"},
    ("release.yml", "describe"): {"contents"},
    ("docs.yml", "deploy"): {"contents"},
}
"""The only jobs that may change anything, and what."""


@pytest.mark.parametrize("path", FILES[:-1], ids=lambda path: path.name)
def test_permissions_are_stated_and_the_least(path: Path) -> None:
    content = read(path)
    assert not written(content["permissions"]), "for all jobs: reading at most"
    for name, job in content["jobs"].items():
        allowed = written(job.get("permissions", content["permissions"]))
        assert allowed == MAY_WRITE.get((path.name, name), set()), name
        assert job["timeout-minutes"] <= 60, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_checkout_leaves_no_credentials_and_no_shell_code_holds_an_expression(path: Path) -> None:
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", "")


def test_the_gate_runs_in_ci_and_every_supported_python_is_tested() -> None:
    of_ci = jobs(ROOT / ".github" / "workflows" / "ci.yml")
    assert any(step.get("run") == ".ci/run" for step in of_ci["gate"]["steps"])
    stated = {name.split()[-1] for name in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", name)}
    # A Python may run there before the classifiers promise it, never the other way round.
    assert set(of_ci["light"]["strategy"]["matrix"]["python"]) >= stated
    assert {*of_ci["full"]["strategy"]["matrix"]["python"], "3.11"} >= stated


def test_the_tests_of_the_light_install_are_there_and_in_the_gate() -> None:
    script = (ROOT / "scripts" / "test_light.sh").read_text("utf-8")
    named = shlex.split(script.partition("-m pytest ")[2].replace("\\\n", " "))
    assert named
    for text in named:
        before, choices, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?(.*)", text).groups()  # type: ignore[union-attr]
        for choice in (choices or "").split(","):
            assert (ROOT / f"{before}{choice}{after}").exists(), text
    assert "scripts/test_light.sh lowest-direct" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_short_benchmarks_are_scripts_with_these_options() -> None:
    folder = ROOT / "benchmarks"
    tree = ast.parse((folder / "every.py").read_text("utf-8"))
    (value,) = [n.value for n in tree.body if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "SHORT"]
    assert value is not None
    for name, arguments in ast.literal_eval(value).items():
        text = (folder / f"{name}.py").read_text("utf-8")
        assert all(f'"{option}"' in text for option in arguments[::2]), name


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_prints_one_json_object_for_the_history(path: Path) -> None:
    text = path.read_text("utf-8")
    if '__name__ == "__main__"' in text and path.stem != "every":
        assert re.search(r"print\(\s*json\.dumps\(", text)
