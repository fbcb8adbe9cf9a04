from __future__ import annotations

import pytest
import typer

from unimoe.console import run
from unimoe.errors import DataError, MissingPartError, UnimoeError, UsageError


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


def test_success_is_0() -> None:
    with pytest.raises(SystemExit) as left:
        run(command(None))
    assert left.value.code == 0


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(command(ZeroDivisionError()))
