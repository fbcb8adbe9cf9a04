"""The code blocks of README and manual: run as printed or, where a block says why not, at least parsed."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from support.docs import Block, code_blocks, run_python
from support.results import write_experiment
from support.runs import random_qrels, random_run
from support.scripts import MAIN, call_script, call_unimoe

import unimoe
from unimoe.cli.app import app
from unimoe.config import TEMPLATES, Experiment
from unimoe.config.files import load_experiment, parse_config
from unimoe.config.served import APIS, ServedConfig
from unimoe.core.trec import Qrels, write_qrels, write_run
from unimoe.data.source import SOURCES
from unimoe.studies.common.family import family_of
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.training.losses import LOSSES

ROOT = Path(__file__).parents[2]
MANUAL = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/studies/*.md"))]
NOT_OURS = {"pip", "pytest", "torchrun", "start_the_next_training"}
SCRIPT_COMMANDS = {"run_experiment": "run", "analyze_results": "analyze", "compare_methods": "compare-heads"}
"""Scripts that are named otherwise than their command."""


def blocks(language: str, path: Path | None = None) -> list[Block]:
    return [block for page in ([path] if path else MANUAL) for block in code_blocks(page, language)]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block, without ``uv run``, comments and other people's programs."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&", line):
            words = shlex.split(part, comments=True)
            if words[:2] == ["uv", "run"]:
                words = words[2:]
            if words and words[0] not in NOT_OURS:
                yield words


def click_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that a line calls, and its arguments."""
    group: Any = typer.main.get_command(app)
    if words[0] == "unimoe":
        return group.commands[words[1]], words[2:]
    name = Path(words[0]).stem
    assert (ROOT / words[0]).is_file(), f"{words[0]}: no such script"
    found = group.commands.get(SCRIPT_COMMANDS.get(name, name.replace("_", "-")))
    return found or typer.main.get_command(_app_of(name)), words[1:]


def _app_of(script: str) -> typer.Typer:
    """The command of a script that ``unimoe`` does not have."""
    source = (ROOT / "scripts" / f"{script}.py").read_text("utf-8")
    names: dict[str, Any] = {"__name__": "imported"}
    exec(compile(source, script, "exec"), names)
    command = re.search(r"app\.command\(\)\((\w+)\)", source)
    assert command, f"{script}: adds no command"
    alone = typer.Typer(add_completion=False)
    alone.command()(names[command[1]])
    return alone


@pytest.mark.parametrize("block", blocks("bash"), ids=lambda b: f"{b.path.stem}:{b.line}")
def test_every_command_has_the_options_that_a_page_gives_it(block: Block) -> None:
    for words in commands(block):
        command, arguments = click_command(words)
        if words[0] != "unimoe" and not command.params:
            continue
        command.make_context(words[0], list(arguments), resilient_parsing=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that README and manual speak of."""
    rng = np.random.default_rng(0)
    qrels: Qrels = random_qrels(40, rng)
    names = ["a1", "a2", "a3", "b1", "b2", "bm25", "splade", "colbert-seed1", "colbert-seed2", "run"]
    names += [f"runs/{d}/{name}" for d in ("dl19", "dl20") for name in ("bm25", "splade", "colbert-1", "colbert-2")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_run(tmp_path / f"{name}.trec", random_run(qrels, 1.0, rng, depth=20), tag=Path(name).name)
    for name in ("q.tsv", "q19.txt", "q20.txt"):
        write_qrels(tmp_path / name, qrels)
    write_experiment(tmp_path / "outputs" / "mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "block", [block for block in blocks("bash") if not block.not_run], ids=lambda b: f"{b.path.stem}:{b.line}"
)
def test_a_command_does_what_the_page_says(block: Block) -> None:
    for words in commands(block):
        script, arguments = (MAIN, words[1:]) if words[0] == "unimoe" else (Path(words[0]).name, words[1:])
        done = call_script(script, *arguments)
        assert done.returncode == 0, f"{block.path.name}:{block.line}: {' '.join(words)}\n{done.stderr}"
        assert done.stdout


def test_what_a_page_registers_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    try:
        run_python(blocks("python", ROOT / "docs" / "extending.md"))
        assert list(unimoe.load_collection("colours:garden").corpus) == ["d1", "d2"]
        assert unimoe.score_run({"q1": {"d1": 1}}, {"q1": {"d1": 1.0}}, ["first_is_best"]).aggregate
        assert ServedConfig(api="hits", model="tiny").api == "hits"
    finally:
        SOURCES._things.pop("colours")
        TEMPLATES._things.pop("bare")
        LOSSES._things.pop("hinge")
        APIS._things.pop("hits")


def test_the_readme_shows_what_the_example_prints() -> None:
    printed = call_unimoe("compare", "--example").stdout.split("\n")
    (shown,) = blocks("text", ROOT / "README.md")
    assert [line for line in shown.text.splitlines() if line.strip() not in {text.strip() for text in printed}] == []


def test_the_picture_of_the_readme_shows_what_the_manual_says() -> None:
    """``docs/report_picture.py`` makes both the picture and the numbers from one run."""
    manual = (ROOT / "docs" / "bundled.md").read_text("utf-8")
    for name, found in json.loads((ROOT / "docs" / "figures" / "report.json").read_text("utf-8")).items():
        value, low, high = found["tir_percent"]
        assert f"{value:+.2f} % ({low:+.2f} to {high:+.2f})" in manual, name
        assert f"(gate: {found['label']})" in manual


@pytest.mark.usefixtures("folder")
def test_the_python_of_the_readme_runs() -> None:
    run_python(blocks("python", ROOT / "README.md"))


def test_every_other_block_of_python_says_why_it_is_not_run() -> None:
    """``tests/unit/test_docs.py`` runs ``docs/python.md``, ``tutorial.md`` and ``beside.md``."""
    for block in blocks("python"):
        assert (
            block.path.name in {"README.md", "python.md", "extending.md", "tutorial.md", "beside.md"} or block.not_run
        ), f"{block.path}:{block.line}"


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda b: f"{b.path.stem}:{b.line}")
def test_a_piece_of_a_configuration_is_one(block: Block, tmp_path: Path) -> None:
    if "family:" in block.text:
        (tmp_path / "study.yaml").write_text(block.text, encoding="utf-8")
        study = load_study(tmp_path / "study.yaml")
        assert StudyRunner(family_of(study.family)(study)).tuned.keys() == study.arms.keys()
        return
    whole = load_experiment(Path("experiments/bundled")).model_dump()
    parse_config(Experiment, _merged(whole, yaml.safe_load(block.text)), source=str(block.path))


def test_the_page_of_keys_is_current() -> None:
    names = runpy.run_path(str(ROOT / "docs" / "configuration.py"))
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == names["page"](), (
        "uv run python docs/configuration.py writes it again"
    )


def test_every_key_says_what_it_means() -> None:
    rows = [line for line in (ROOT / "docs" / "configuration.md").read_text("utf-8").splitlines() if "`" in line[:4]]
    assert len(rows) > 300
    assert [row for row in rows if row.endswith("|  |")] == []


def _merged(whole: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    return whole | {
        key: _merged(whole[key], value) if isinstance(value, dict) and isinstance(whole.get(key), dict) else value
        for key, value in piece.items()
    }


def test_what_a_page_says_was_not_done_is_an_open_question() -> None:
    """A sentence such as "was not measured" stands in a page that the list of open questions names."""
    undone = re.compile(r"\b(?:was|were) not (?:run|measured|found|tried)\b|\bnot run yet\b")
    listed = (ROOT / "docs" / "open-questions.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = re.sub(r"<!--.*?-->|`[^`]*`", "", page.read_text(encoding="utf-8"))
        if page.name != "open-questions.md" and (found := undone.search(text)):
            line = text[: found.start()].count("\n") + 1
            assert f"]({page.relative_to(ROOT / 'docs').as_posix()})" in listed, (
                f"{page.name}:{line}: {found[0]}: not listed"
            )
