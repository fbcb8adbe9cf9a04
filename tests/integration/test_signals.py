"""Ctrl-C and SIGTERM end a command with one line and exit code 130, wherever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support.reranking import invented, write_invented

LINE = "error: stopped; run the same command again to go on from what is done\n"
COMMAND = """
import sys, threading, time
from pathlib import Path
import typer
from unimoe.core.console import run
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path

app = typer.Typer()
begun = Path("begun").touch

@app.command()
def main() -> None:
{work}

run(app)
"""
SWALLOWED = "try:\n    begun()\n    time.sleep(60)\nexcept BaseException:\n    {}"
NEVER_ENDS = "while True:\n    try:\n        begun()\n        time.sleep(0.01)\n    except BaseException:\n        pass"
WORK = {
    "between two steps": "with atomic_path(Path('some.json')):\n    begun()\n    time.sleep(60)",
    "in what swallows every exception": NEVER_ENDS,
    "beside a thread that does not end": "threading.Timer(60, print).start()\nbegun()\ntime.sleep(60)",
    "swallowed": SWALLOWED.format("pass"),
    "another error in its place": SWALLOWED.format("raise ValueError"),
    "an error of the user's in its place": SWALLOWED.format("raise DataError('of what did not happen')"),
}
FUNCTIONS = "import time\nfrom pathlib import Path\n\nbegun = Path('begun').touch\n\ndef stubborn(pairs):\n"


def indented(code: str) -> str:
    return textwrap.indent(code, "    ")


def stopped(folder: Path, command: list[str], number: int, **environment: str) -> tuple[int, str, str]:
    """How a command ends that gets a signal once it has made the file ``begun``."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, **output)  # type: ignore[call-overload]
    while not (folder / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=40)
        return process.returncode, out, err
    finally:
        process.kill()


@pytest.mark.parametrize("work", WORK)
def test_a_signal_ends_a_command_with_a_line_and_no_temporary_file(tmp_path: Path, work: str) -> None:
    number = signal.SIGINT if work == "between two steps" else signal.SIGTERM
    command = [sys.executable, "-c", COMMAND.format(work=indented(WORK[work]))]
    assert stopped(tmp_path, command, number) == (130, "", LINE)
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_a_signal_within_a_users_function_is_not_the_functions_error(tmp_path: Path) -> None:
    write_invented(tmp_path / "toy", invented(documents=15, queries=8))
    (tmp_path / "functions.py").write_text(FUNCTIONS + indented(NEVER_ENDS), "utf-8")
    asked = ["evaluate", "--model", "python:functions:stubborn", "--dataset", "toy", "--output-dir", "out"]
    places = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    code, _, said = stopped(tmp_path, [sys.executable, "-m", "unimoe", *asked], signal.SIGTERM, **places)
    assert code == 130, said
    assert said.endswith(LINE)
    assert "raised" not in said
