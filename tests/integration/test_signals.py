"""Ctrl-C and SIGTERM end a command with one line and exit code 130, wherever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.reranking import invented, write_invented
from support.scripts import Done

LINE = "error: stopped; run the same command again to go on from what is done\n"
COMMAND = """
import os, signal, sys, time
from pathlib import Path
import typer
from unimoe.core.console import run
from unimoe.core.io import atomic_path

app = typer.Typer()
begun = Path("begun").touch

@app.command()
def main() -> None:
{work}

run(app)
"""
NOT_TO_BE_STOPPED = """
while True:
    try:
        Path("begun").touch()
        time.sleep(0.01)
    except BaseException:
        pass
"""
FUNCTIONS = """
import time
from pathlib import Path

def slow(pairs):
    Path("begun").touch()
    time.sleep(60)

def stubborn(pairs):
"""


def stopped(folder: Path, command: list[str], number: int = signal.SIGTERM, **environment: str) -> Done:
    """How a command ends that gets a signal once it has made the file ``begun``."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=40)
        return Done(process.returncode, out, err)
    finally:
        process.kill()


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


SWALLOWED = """
from unimoe.core.errors import DataError
try:
    begun()
    time.sleep(60)
except BaseException:
    {}
"""
WORK = {
    "between two steps": """
with atomic_path(Path("some.json")):
    begun()
    time.sleep(60)
""",
    "in what swallows every exception": NOT_TO_BE_STOPPED,
    "beside a thread that does not end": """
import threading
threading.Thread(target=time.sleep, args=(60,)).start()
begun()
time.sleep(60)
""",
    "swallowed": SWALLOWED.format("pass"),
    "another error in its place": SWALLOWED.format("raise ValueError"),
    "an error of the user's in its place": SWALLOWED.format("raise DataError('of what did not happen')"),
}


@pytest.mark.parametrize("work", WORK)
def test_a_signal_ends_a_command_with_a_line_and_no_temporary_file(tmp_path: Path, work: str) -> None:
    number = signal.SIGINT if work == "between two steps" else signal.SIGTERM
    done = stopped(tmp_path, [sys.executable, "-c", COMMAND.format(work=indented(WORK[work]))], number)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


@pytest.mark.parametrize("function", ["slow", "stubborn"])
def test_a_signal_within_a_users_function_is_not_the_functions_error(tmp_path: Path, function: str) -> None:
    write_invented(tmp_path / "toy", invented(documents=15, queries=8))
    (tmp_path / "functions.py").write_text(FUNCTIONS + indented(NOT_TO_BE_STOPPED), "utf-8")
    asked = ["evaluate", "--model", f"python:functions:{function}", "--dataset", "toy", "--output-dir", "out"]
    places = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    done = stopped(tmp_path, [sys.executable, "-m", "unimoe", *asked], signal.SIGTERM, **places)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith(LINE)
    assert "raised" not in done.stderr
