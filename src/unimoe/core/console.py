"""Output of commands: results on stdout; progress, warnings and errors on stderr."""

from __future__ import annotations

import unimoe.core.quiet_imports  # noqa: F401

# isort: split

import codecs
import io
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from unimoe.core.errors import UnimoeError, UsageError, missing_extra, system_refusal
from unimoe.core.limits import harmless, shortened, visible
from unimoe.core.stopping import ended_by_signals

_LONGEST, _SHORTEST = 10_000, 20
"""Columns of a line where no terminal breaks it, and the fewest of one that does."""


class _Console(Console):
    """A console without markup and emoji, so that ``[x]`` and ``path:one:`` print unchanged; no text can steer it.

    Nor can a width take results away: it breaks lines on terminals alone, and one of 0 counts as none.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
        unusable = {name for name, size in sizes.items() if not re.fullmatch("[1-9][0-9]{0,3}", size)}
        environment = {name: value for name, value in os.environ.items() if name not in unusable}
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, _environ=environment)

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        """Return columns and lines of the terminal; whole lines where the output goes elsewhere."""
        found = super().size
        return ConsoleDimensions(max(found.width, _SHORTEST) if self.is_terminal else _LONGEST, found.height)

    def print(self, *objects: Any, **options: Any) -> None:  # ``out`` prints by it too
        is_seen = self.stderr or self.is_terminal  # what a program reads from a pipe stays as it is
        shown = (harmless(one) if is_seen and isinstance(one, str) else one for one in objects)
        super().print(*shown, **{"crop": False} | options)


stdout = _Console()
"""For results."""

stderr = _Console(stderr=True)
"""For progress, warnings and errors."""

SECONDS_OF_SILENCE = 60.0
"""How long a unit may run without a line where there is no terminal to show a bar."""

_ESCAPED = "unimoe.escaped"  # how characters are written that a terminal's encoding lacks


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and exit with its code.

    A ``UnimoeError``, what the system refuses, Ctrl-C and SIGTERM become one line on stderr and an exit code. Any other
    exception is a bug and keeps its traceback. Where nobody reads the output on, as ``head``, it ends without a word.
    """
    app.pretty_exceptions_enable = False
    if sys.stderr is None:  # closed by the caller
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)
    try:
        _run(app)
    except SystemExit as ended:  # with the code 1 where rich or click found a closed pipe
        sys.exit(141 if isinstance(ended.__context__, BrokenPipeError) else ended.code)  # 141 as after SIGPIPE
    sys.exit(0)


def _run(app: typer.Typer) -> None:
    try:
        with ended_by_signals():
            if sys.stdout is None:  # the next file that is opened would take its number
                raise UsageError("standard output is closed, where results go; send it to a file or to /dev/null")
            app()
    except Exception as error:
        shown = error if isinstance(error, UnimoeError) else system_refusal(error)
        if isinstance(error, ModuleNotFoundError):
            shown = missing_extra(error)
        if shown is None:
            raise
        print_error(shown)
        sys.exit(shown.exit_code)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Write what a terminal's encoding lacks as JSON does, which is right in ``--json`` too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def print_error(error: UnimoeError) -> None:
    """Print ``error: ...`` on stderr in one line without wrapping, so that paths can be copied."""
    message = shortened(visible(str(error)), 4000)
    stderr.quiet = False
    with suppress(OSError):  # nobody reads it, or its disk is full: the exit code says enough
        stderr.print(Text.assemble(("error:", "bold red"), " ", message), soft_wrap=True)


@dataclass
class Step:
    """A unit of work in progress."""

    advance: Callable[[int], None]  # reports parts done
    outcome: str = "done"  # is shown at its end
    was_done: bool = False  # whether nothing was left to do


class Steps:
    """Reports the units of a long job on stderr, while each runs and when it ends.

    Args:
        total: the number of units.
        seconds_left: returns the seconds that the units after the first N will take; shown at the end of each.
        bars: whether a unit shows how far it is: a bar on a terminal, else a line a minute; not where several units
            run together.

    Attributes:
        done: units that were done here, those skipped not counted.
    """

    def __init__(self, total: int, seconds_left: Callable[[int], float] | None = None, *, bars: bool = True) -> None:
        self._total, self._number, self._seconds_left, self._bars = total, 0, seconds_left, bars
        self.done = 0

    def skip(self, name: str) -> None:
        """Report a unit that has its output already."""
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


def in_hours(seconds: float) -> str:
    """Return a time as hours, or as minutes below two of them."""
    return f"{seconds / 3600:,.1f} hours" if seconds >= 7200 else f"{seconds / 60:,.0f} minutes"


def _rounded(seconds: float) -> str:
    """Return a time in words, as exact as an expected one is."""
    return f"about {math.ceil(seconds / 10) * 10} s" if seconds <= 90 else f"about {math.ceil(seconds / 60)} min"


@contextmanager
def _bar(label: str, size: int | None, wanted: bool) -> Iterator[Callable[[int], None]]:
    if wanted and not stderr.is_terminal:
        with _lines(label, size) as advance:
            yield advance
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not wanted) as bar:
        task = bar.add_task(label, total=size)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _lines(label: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Print how far a unit is once a minute, by a thread: work that reports no parts must not look dead either."""
    start, parts, over = time.perf_counter(), 0, threading.Event()

    def advance(done: int) -> None:
        nonlocal parts
        parts += done

    def report() -> None:
        while not over.wait(SECONDS_OF_SILENCE):
            done = f"{parts:,} done" if size is None else f"{parts:,} of {size:,}"
            stderr.print(f"{label}: {done} ({time.perf_counter() - start:.0f} s)", style="dim", soft_wrap=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        over.set()
        thread.join()
