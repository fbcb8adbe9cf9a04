"""Errors end a command in one line and with their exit code, and a long job shows how far it is."""

from __future__ import annotations

import errno
import time

import pytest
import typer

from unimoe.core import console
from unimoe.core.console import Steps, run
from unimoe.core.errors import DataError, MissingPartError, UnimoeError, UsageError

LONG = "x" * 300


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("/a/path[red]:\n no such file"), 2, "/a/path[red]: no such file\n"),
        (DataError("wrong"), 3, "wrong\n"),
        (MissingPartError("done, without it"), 4, "done, without it\n"),
        (UnimoeError("a" * 9000 + "end"), 3, "aaa"),
        (OSError(errno.ENAMETOOLONG, "File name too long", LONG), 3, f"{LONG}: File name too long; check the path"),
        (OSError(errno.ENOSPC, "x"), 3, "no room is left on the disk"),
        (RuntimeError("I/O error: No space left on device"), 3, "no room is left on the disk"),
        (OSError(errno.EFBIG, "x"), 3, "a file would be larger than this process may write"),
        (OSError(errno.EMFILE, "x"), 3, "this process may open no more files"),
        (PermissionError(errno.EACCES, "Permission denied", "analysis"), 3, "analysis: Permission denied"),
        (MemoryError("of a tensor"), 3, "not enough memory (of a tensor)"),
    ],
    ids=str,
)
def test_what_the_user_or_the_system_can_fix_is_one_line_and_an_exit_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["command"])
    app = typer.Typer()

    @app.command()
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as left:
        run(app)
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (code, "")
    assert said.err.startswith(f"error: {line}")
    assert said.err.count("\n") == 1
    assert len(said.err) < 4100


def test_a_long_unit_says_how_far_it_is_where_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SECONDS_OF_SILENCE", 0.05)
    with Steps(1).step("infonce: 3 seeds", 1500) as step:
        step.advance(200)
        step.advance(100)
        time.sleep(0.5)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[1/1] infonce: 3 seeds: 300 of 1,500 (")
    assert said[-1].startswith("[1/1] infonce: 3 seeds: done (")
