from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from unimoe.core import console
from unimoe.core.console import Steps, print_error, run
from unimoe.core.errors import DataError, MissingPartError, UnimoeError, UsageError


def command(error: BaseException | None) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def main() -> None:
        if error is not None:
            raise error

    return app


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["command"])


@pytest.mark.parametrize(("kind", "code"), [(UsageError, 2), (DataError, 3), (MissingPartError, 4)])
def test_an_error_the_user_can_mend_is_one_line_and_its_exit_code(
    kind: type[UnimoeError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(command(kind(f"{'/a/long/path' * 20}[red]:\n no such file")))
    assert left.value.code == code
    captured = capsys.readouterr()
    assert captured.err == f"error: {'/a/long/path' * 20}[red]: no such file\n"
    assert captured.out == ""


def ended(work: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit code of a command that does this work, and what it says."""
    app = typer.Typer()

    @app.command()
    def main() -> None:
        work()

    with pytest.raises(SystemExit) as left:
        run(app)
    return left.value.code, capsys.readouterr().err


def test_a_path_that_is_too_long_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(lambda: Path("x" * 300).stat(), capsys)
    assert code == 3
    assert said == f"error: {'x' * 300}: File name too long; check the path, its rights, and the room on its disk\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), "no room is left on the disk"),
        (RuntimeError("I/O error: No space left on device"), "no room is left on the disk"),
        (OSError(errno.EFBIG, "x"), "a file would be larger than this process may write"),
        (OSError(errno.EMFILE, "x"), "this process may open no more files"),
        (PermissionError(errno.EACCES, "Permission denied", "analysis"), "analysis: Permission denied"),
    ],
)
def test_what_the_system_refuses_is_one_line_whoever_says_it(
    capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    with pytest.raises(SystemExit) as left:
        run(command(error))
    assert left.value.code == 3
    assert capsys.readouterr().err.startswith(f"error: {words}")


def test_a_long_message_loses_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(UnimoeError("a" * 9000 + "end"))
    said = capsys.readouterr().err
    assert len(said) < 4100
    assert said.endswith("end (9,003 characters)\n")


class TestSteps:
    """Units of a long job where output is no terminal."""

    @pytest.fixture(autouse=True)
    def _short_minutes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(console, "SECONDS_OF_SILENCE", 0.05)

    def test_a_long_unit_says_how_far_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Steps(1).step("infonce: 3 seeds", 1500) as step:
            step.advance(200)
            step.advance(100)
            time.sleep(0.5)
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith("[1/1] infonce: 3 seeds: 300 of 1,500 (")
        assert said[-1].startswith("[1/1] infonce: 3 seeds: done (")
