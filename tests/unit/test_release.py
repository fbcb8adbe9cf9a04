"""What a release rests on: changelog, version, citation, its text, messages of commits, the history of benchmarks."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.scripts import call_script, call_unimoe

import unimoe

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NOTES: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "release_notes.py"))
COMPLAINT = runpy.run_path(str(ROOT / "scripts" / "check_commit.py"))["complaint"]
RELEASES = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


def test_the_changelog_is_one_line_an_entry_under_known_headings() -> None:
    headings = re.findall(r"^## .*$", CHANGELOG, re.MULTILINE)
    assert headings[0] == "## [Unreleased]"
    assert headings[1:] == [f"## [{version}] - {date}" for version, date in RELEASES]
    assert RELEASES
    for line in CHANGELOG.partition("## [Unreleased]")[2].splitlines():
        assert not line or line.startswith(("- ", "## [", "### ")), (
            f"an entry is one line that begins with '- ': {line!r}"
        )
        assert len(line) <= 160, f"at most 160 characters: {line}"


@pytest.mark.parametrize("version", [version for version, _ in RELEASES])
def test_a_section_of_the_changelog_has_at_most_600_words(version: str) -> None:
    assert 0 < len(NOTES["section"](CHANGELOG, version).split()) <= 600


def test_changelog_fallback_and_citation_name_one_version() -> None:
    """A clone without tags says the fallback, so it is the version of the newest section, or the one after it."""
    version, date = RELEASES[0]
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"].removesuffix(".dev0")
    as_numbers = [tuple(map(int, text.split("."))) for text in (version, fallback)]
    assert as_numbers[0] <= as_numbers[1]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f'\ndate-released: "{date}"\n' in citation


def test_the_version_is_said_and_begins_as_the_changelog_does() -> None:
    assert call_unimoe("--version").stdout == f"unimoe {unimoe.__version__}\n"
    assert re.match(r"\d+\.\d+\.\d+", unimoe.__version__)


def test_a_releases_text_is_its_section_and_its_files_are_of_its_version(tmp_path: Path) -> None:
    version = RELEASES[0][0]
    (tmp_path / f"unimoe-{version}-py3-none-any.whl").touch()
    (tmp_path / f"unimoe-{version}.tar.gz").touch()
    done = notes(f"v{version}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == NOTES["section"](CHANGELOG, version)
    assert "## [" not in done.stdout
    (tmp_path / f"unimoe-{version}.dev3+g0123abc.tar.gz").touch()
    done = notes(f"v{version}", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is not of version {version}" in done.stderr


@pytest.mark.parametrize("tag", ["v99.0.0", "Unreleased", "v0"])
def test_a_tag_without_a_section_is_no_release(tag: str) -> None:
    done = notes(tag)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CHANGELOG.md: no section [")


def notes(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "scripts" / "release_notes.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


CODE = ["src/unimoe/cli/app.py", "tests/unit/test_api.py"]


@pytest.mark.parametrize(
    ("message", "changed", "says"),
    [
        ("Refuse equal scores\n", CODE, "no body"),
        ("Refuse equal scores\n\n# Please enter the message\n", CODE, "no body"),
        ("Refuse equal scores\n\nSigned-off-by: A <a@b.c>\n", CODE, "no body"),
        ("Refuse equal scores\n# ------------------------ >8 ---\ndiff --git a b\n\n+ a\n", CODE, "no body"),
        ("Refuse equal scores\nsince they rank nothing\n", CODE, "leave the second line empty"),
        ("Formats read by name\n", CODE, "no body"),
        ("Refuse equal scores\n\nThey ranked by id: tau was 1 to itself.\n", CODE, None),
        ("Refuse equal scores\n", ["docs/compare.md", "tests/unit/test_api.py"], None),
        ("Rename gap to margin\n", CODE, None),
        ("Merge branch 'losses'\n", CODE, None),
        ("fixup! Refuse equal scores\n", CODE, None),
    ],
)
def test_a_change_of_behaviour_says_why(message: str, changed: list[str], says: str | None) -> None:
    found = COMPLAINT(message, changed)
    assert found is None if says is None else says in found


def test_git_refuses_a_commit_by_the_hook(tmp_path: Path) -> None:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        named = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *named, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    git("init", "--quiet")
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "scripts" / "check_commit.py"}" "$1"\n', "utf-8")
    hook.chmod(0o755)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").touch()
    git("add", ".")
    refused = git("commit", "--message", "Add a")
    assert refused.returncode != 0
    assert "commit message: it changes src/ and has no body" in refused.stderr
    assert git("commit", "--message", "Add a", "--message", "It was not there.").returncode == 0


def test_benchmarks_keep_what_they_find_and_name_what_failed(tmp_path: Path) -> None:
    every = runpy.run_path(str(ROOT / "benchmarks" / "every.py"))
    made, history = tmp_path / "benchmarks", tmp_path / "history.jsonl"
    made.mkdir()
    (made / "every.py").write_text((ROOT / "benchmarks" / "every.py").read_text("utf-8"), "utf-8")
    last = {
        "fine": "print('text')\nprint('{\"ratio\": 2.5}')",
        "wordy": "print('fast')",
        "broken": "raise SystemExit(3)",
    }
    for name, text in last.items():
        (made / f"{name}.py").write_text(f'if __name__ == "__main__":\n    {text.replace(chr(10), chr(10) + "    ")}\n')
    (made / "module.py").write_text("raise SystemExit(9)\n", "utf-8")
    for _ in range(2):
        done = call_script(str(made / "every.py"), "--history", history)
        assert done.returncode == 4
        assert "wordy: its last line is no JSON object: 'fast'" in done.stderr
        assert "broken: it ended with exit code 3" in done.stderr
    first, second = map(json.loads, history.read_text("utf-8").splitlines())
    assert first["found"] == second["found"] == {"ratio": 2.5}
    assert (first["script"], first["arguments"]) == ("fine", [])
    assert {"processor", "cores", "memory_gib", "python", "torch"} <= first["machine"].keys()
    assert first.keys() >= {"commit", "dirty", "date", "seconds"}
    assert "main_job" in every["scripts"]()
    assert "timing" not in every["scripts"]()


def test_the_page_of_benchmarks_is_current_and_keeps_machines_apart() -> None:
    made: Any = runpy.run_path(str(ROOT / "docs" / "benchmarks.py"))
    lines = [json.loads(line) for line in made["HISTORY"].read_text("utf-8").splitlines()]
    curves = made["series"](lines)
    assert (ROOT / "docs" / "benchmarks.md").read_text("utf-8") == made["page"](curves), (
        "uv run python docs/benchmarks.py"
    )
    assert (ROOT / "docs" / made["FIGURE"]).read_text("utf-8") == made["figure"](curves)
    one = {
        "script": "bm25",
        "arguments": [],
        "date": "2026-11-29",
        "commit": "0123456789",
        "dirty": False,
        "seconds": 9.0,
    }
    here = {"processor": "first", "cores": 2, "accelerator": None}
    lines = [
        {**one, "machine": here, "found": {"ratio": {"own": 2.0}, "rows": [1, 2], "reps": 3}},
        {**one, "machine": here, "found": {"ratio": {"own": 3.0}}},
        {**one, "machine": {**here, "processor": "<second>"}, "found": {"ratio": {"own": 4.0}}},
    ]
    found = {(place, name): [value for *_, value in of] for (_, _, place, name), of in made["series"](lines).items()}
    assert found["first, 2 cores", "ratio, own"] == [2.0, 3.0]
    assert found["<second>, 2 cores", "ratio, own"] == [4.0]
    assert len(found) == 4  # those, and the seconds in all of both machines
    assert "| 3 | 2 | 2 | 2026-11-29, `01234567` |" in made["page"](made["series"](lines))
    assert made["figure"](made["series"](lines)).count("<polyline") == 4
