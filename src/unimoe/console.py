"""Output of commands: results on stdout; progress, warnings and errors on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from unimoe.errors import UnimoeError

stdout = Console(highlight=False, markup=False)
"""For results. Without markup, so that names with brackets print unchanged."""

stderr = Console(stderr=True, highlight=False, markup=False)
"""For progress, warnings and errors."""


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and exit with its code.

    A ``UnimoeError`` becomes one line on stderr and its exit code; any other exception is a bug and keeps its
    traceback.
    """
    app.pretty_exceptions_enable = False
    try:
        app()
    except UnimoeError as error:
        print_error(error)
        sys.exit(error.exit_code)
    sys.exit(0)


def be_quiet() -> None:
    """Print only errors from now on, because another process prints the rest."""
    stdout.quiet = True
    stderr.quiet = True


def print_error(error: UnimoeError) -> None:
    """Print ``error: ...`` on stderr in one line without wrapping, so that paths can be copied."""
    message = " ".join(str(error).split())
    stderr.quiet = False
    stderr.print(Text.assemble(("error:", "bold red"), " ", message), soft_wrap=True)


@dataclass
class Step:
    """A unit of work in progress.

    Attributes:
        advance: reports parts done.
        outcome: is shown at its end.
        was_done: whether nothing was left to do.
    """

    advance: Callable[[int], None]
    outcome: str = "done"
    was_done: bool = False


class Steps:
    """Reports the units of a long job on stderr: a bar while one runs, on terminals, and a line when it ends.

    Args:
        total: the number of units.
        seconds_left: returns the seconds that the units after the first N will take; shown at the end of each.
        bars: whether a unit shows a bar; not where several units run together.

    Attributes:
        done: units that were done here, those skipped not counted.
    """

    def __init__(self, total: int, seconds_left: Callable[[int], float] | None = None, *, bars: bool = True) -> None:
        self._total, self._number, self._seconds_left, self._bars = total, 0, seconds_left, bars
        self.done = 0

    def skip(self, name: str) -> None:
        """Report a unit whose output exists."""
        stderr.print(f"{self._label(name)}: already done", style="dim", soft_wrap=True)

    @contextmanager
    def step(self, name: str, size: int | None) -> Iterator[Step]:
        """Report one unit of ``size`` parts (None if unknown) while the block runs, then its outcome and seconds."""
        label, start = self._label(name), time.perf_counter()
        with _bar(label, size, self._bars) as advance:
            step = Step(advance)
            yield step
        self.done += not step.was_done
        left = f", {_rounded(self._seconds_left(self._number))} left" if self._seconds_left else ""
        stderr.print(f"{label}: {step.outcome} ({time.perf_counter() - start:.0f} s{left})", soft_wrap=True)

    def _label(self, name: str) -> str:
        self._number += 1
        return f"[{self._number:>{len(str(self._total))}}/{self._total}] {name}"


def _rounded(seconds: float) -> str:
    """Return a time in words, as exact as an expected one is."""
    return f"about {math.ceil(seconds / 10) * 10} s" if seconds <= 90 else f"about {math.ceil(seconds / 60)} min"


@contextmanager
def _bar(label: str, size: int | None, wanted: bool) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not (wanted and stderr.is_terminal)) as bar:
        task = bar.add_task(label, total=size)
        yield lambda done: bar.advance(task, done)
