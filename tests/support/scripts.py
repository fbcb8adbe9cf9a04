"""Scripts run inside the test process: the imports that take most of a command's time are paid once."""

from __future__ import annotations

import io
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import unimoe

SCRIPTS = Path(__file__).parents[2] / "scripts"
MAIN = str(Path(unimoe.__file__).with_name("__main__.py"))


@dataclass(frozen=True)
class Done:
    """How a script ended."""

    returncode: int
    stdout: str
    stderr: str


def call_script(name: str, *arguments: str | Path, **environment: str) -> Done:
    """Run ``scripts/{name}`` with these arguments, as ``python scripts/{name} ...`` would."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", [name, *map(str, arguments)]),
        patch.dict("os.environ", environment),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, stdout.getvalue(), stderr.getvalue())


def call_unimoe(*arguments: str | Path, **environment: str) -> Done:
    """Run a command as ``unimoe ...`` would."""
    return call_script(MAIN, *arguments, **environment)


def successful(done: Done) -> Done:
    """Return how a script ended, which must be well."""
    assert done.returncode == 0, done.stderr
    return done


def kill_script_when(moment: Callable[[], bool], name: str, *arguments: str | Path, **environment: str) -> None:
    """Run a script in a process of its own, and kill it with a signal it cannot catch once the moment comes."""
    command, quiet = [sys.executable, SCRIPTS / name, *arguments], subprocess.DEVNULL
    with (
        patch.dict("os.environ", environment),
        subprocess.Popen(command, stdout=quiet, stderr=quiet) as process,
    ):
        deadline = time.monotonic() + 300
        while not moment():
            assert process.poll() is None, "the run ended before the moment came"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)


def assert_refused(done: Done, code: int, *words: str, silent: bool = True) -> None:
    """The last line on stderr holds all words, and there is no traceback; nor anything on stdout, if ``silent``."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.lower().startswith("error: ")
    for word in words:
        assert word in last
    assert not (silent and done.stdout)
