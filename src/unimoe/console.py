"""How commands speak: results on stdout, progress and errors on stderr, one line per mendable error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from unimoe.errors import UnimoeError

stdout = Console(highlight=False, markup=False)
"""What a command was asked for; safe to pipe. Without markup, so that names with brackets print as they are."""

stderr = Console(stderr=True, highlight=False, markup=False)
"""Progress, warnings, errors."""


def run(app: typer.Typer) -> NoReturn:
    """Run a command line to its end and leave with its exit code.

    An error the user can mend becomes one line on stderr and its exit code; any other exception is a bug in unimoe and
    keeps its plain traceback.
    """
    app.pretty_exceptions_enable = False
    try:
        app()
    except UnimoeError as error:
        print_error(error)
        sys.exit(error.exit_code)
    sys.exit(0)


def be_quiet() -> None:
    """Print nothing from now on but errors: another process speaks for this one."""
    stdout.quiet = True
    stderr.quiet = True


def print_error(error: UnimoeError) -> None:
    """Print ``error: ...`` on stderr: one line whatever the message holds, not wrapped, so that paths can be copied."""
    message = " ".join(str(error).split())
    stderr.quiet = False
    stderr.print(Text.assemble(("error:", "bold red"), " ", message), soft_wrap=True)


@dataclass
class Step:
    """One unit of work under way: tell it of progress, and what came out."""

    advance: Callable[[int], None]
    outcome: str = "done"


class Steps:
    """Numbers the units of a long job on stderr: a bar while one runs, on terminals only, and a line when it ends.

    Args:
        total: how many units there are.
    """

    def __init__(self, total: int) -> None:
        self._total, self._number = total, 0

    def skip(self, name: str) -> None:
        """A unit whose output is already there."""
        stderr.print(f"{self._label(name)}: already done", style="dim", soft_wrap=True)

    @contextmanager
    def step(self, name: str, size: int | None) -> Iterator[Step]:
        """Run one unit of ``size`` parts (null: nobody knows); it ends with a line that shows outcome and seconds."""
        label, start = self._label(name), time.perf_counter()
        with _bar(label, size) as advance:
            step = Step(advance)
            yield step
        stderr.print(f"{label}: {step.outcome} ({time.perf_counter() - start:.0f} s)", soft_wrap=True)

    def _label(self, name: str) -> str:
        self._number += 1
        return f"[{self._number:>{len(str(self._total))}}/{self._total}] {name}"


@contextmanager
def _bar(label: str, size: int | None) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(label, total=size)
        yield lambda done: bar.advance(task, done)
