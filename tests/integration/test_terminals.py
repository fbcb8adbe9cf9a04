"""Results are printed whole, whatever the environment says of the terminal's size, on a terminal and elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from support.toy_collections import invented, write_beir

import unimoe

RUNS = Path(unimoe.__file__).parent / "data" / "example_runs"
SETTINGS = [
    *({"COLUMNS": width} for width in ("0", "1", "-5", "abc", "²", "9" * 5000)),
    *({"LINES": "0"}, {"COLUMNS": "0", "LINES": "0"}, {"TERM": "dumb"}, {"TERM": "dumb", "COLUMNS": "0"}),
    *({"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "COLUMNS": "0"}),
]
COMMANDS: dict[str, tuple[list[str | Path], list[str]]] = {
    "evaluate-run": (["evaluate-run", RUNS / "bm25.trec.gz", RUNS / "qrels.gz"], ["ndcg@10", "0.4946", "queries"]),
    "compare": (
        ["compare", "--example", "--metric", "ndcg@10"],
        ["49.46", "zero_shot", "Caveat", "7907"],
    ),
    "cache": (["cache"], ["0 entries"]),
    "import": (["import", "toy", "--output-dir", "imported", "--overwrite"], ["documents", "--datasetpath:imported"]),
    "analyze": (["analyze", "tables", "--output-dir", "kept"], ["49.46", "specialist"]),
    "status": (["status", "kept"], ["joint", "0.4616", "zero_shot"]),
    "help": (["compare", "--help"], ["--specialist", "--baseline"]),
    "version": (["--version"], [f"unimoe {unimoe.__version__}"]),
}
"""Of each command what its output must hold, whose white space may break anywhere."""


def unimoe_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "unimoe", *map(str, arguments)]


def on_terminal(command: list[str], environment: dict[str, str], columns: int, cwd: Path) -> tuple[int, str]:
    """Run a command on a terminal of so many columns, and return its code and all that it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command, **ends, env=os.environ | environment, cwd=cwd) as process:  # type: ignore[call-overload]
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 2**16)
            except OSError:  # Linux's way to say that nobody writes any more
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return process.returncode, shown.decode()


def bare(text: str) -> str:
    """A text without colours and white space."""
    return re.sub(r"\s|\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection and with kept results, in which commands run."""
    folder = tmp_path_factory.mktemp("terminals")
    write_beir(invented(documents=5, queries=2), folder / "toy")
    keep = unimoe_command("compare", "--example", "--output-dir", "kept")
    assert subprocess.run(keep, cwd=folder, capture_output=True, check=False).returncode == 0
    return folder


@pytest.fixture(autouse=True)
def _as_a_stranger(monkeypatch: pytest.MonkeyPatch, tmp_cache: Path) -> None:
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def in_pipe(command: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: ",".join(f"{k}={v[:9]}" for k, v in setting.items()))
def test_no_setting_of_a_terminal_takes_results_away(setting: dict[str, str], folder: Path) -> None:
    arguments, words = COMMANDS["evaluate-run"]
    code, shown = on_terminal(unimoe_command(*arguments), setting, 80, folder)
    assert code == 0
    assert all(word in bare(shown) for word in words), shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_results_at_any_width(name: str, folder: Path) -> None:
    arguments, words = COMMANDS[name]
    command = unimoe_command(*arguments)
    piped = in_pipe(command, {"COLUMNS": "0"}, folder)
    assert piped.returncode == 0, piped.stderr
    code, shown = on_terminal(command, {}, 1, folder)
    assert code == 0, shown
    for word in words:
        assert bare(word) in bare(piped.stdout)
        assert bare(word) in bare(shown)


def test_what_goes_into_a_file_has_one_line_for_each_row_and_no_width(folder: Path) -> None:
    command = unimoe_command("compare", "--example")
    shown = in_pipe(command, {"COLUMNS": "30"}, folder).stdout
    heads = [line for line in shown.splitlines() if line.strip().startswith("System ")]
    assert {"nDCG@10", "Unjudged", "Seeds"} <= set(heads[0].split())
    assert in_pipe(command, {}, folder).stdout == shown


@pytest.mark.parametrize(
    ("redirected", "code", "line"),
    [
        (">/dev/full", 3, "error: no room is left on the disk, or no inode; free some, and run again"),
        (">&-", 2, "error: standard output is closed, where results go; send it to a file or to /dev/null"),
        ("2>&-", 0, ""),
        ("--depth=0 2>/dev/full", 2, ""),
        ("| head -c 1 >/dev/null; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_an_output_that_takes_nothing_ends_in_a_line_and_a_code(
    redirected: str, code: int, line: str, folder: Path
) -> None:
    arguments, _ = COMMANDS["compare" if "head" in redirected else "evaluate-run"]
    command = f"{shlex.join(unimoe_command(*arguments))} {redirected}"
    done = in_pipe(["bash", "-c", command], {}, folder)
    assert done.returncode == code
    assert done.stderr.rstrip().endswith(line)
    assert "Traceback" not in done.stderr
