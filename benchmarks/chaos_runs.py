"""Runs of one command in forks of this process: started, killed, resumed, with a journal of what they saved."""

from __future__ import annotations

import datetime
import math
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_compare import files_without_times

UNITS = re.compile(
    r"(^asked .*|state\.safetensors|store\.json|shards/.+\.json|results/.*(?<!\.queries)(?<!\.mteb)\.json"
    r"|checkpoint[^/]*|checkpoint-[^/]*/unimoe\.json|part[^/]*\.json)$"
)
"""The lines of a journal that show a unit of work: what a file is written for, or what a model was asked."""

OUT = "disk/out"
"""The output folder of all commands."""

_TEMPORARY = re.compile(r"\.tmp$|\.old$")


class OutOfTimeError(Exception):
    """The minutes of the harness are over."""


@dataclass(frozen=True)
class Command:
    """A long command.

    Attributes:
        name: of the command.
        arguments: of the command line, ``OUT`` in the place of its output folder.
        script: in ``scripts/``, where it is no command of ``unimoe``.
        requests: that wait together for a server; 0 for a command that asks none.
        finished: what its output folder holds from the beginning.
    """

    name: str
    arguments: tuple[str, ...]
    script: Path | None = None
    requests: int = 0
    finished: Path | None = None


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        code: the exit code, or minus the signal.
        seconds: that it took.
        said: its stderr.
    """

    code: int
    seconds: float
    said: str

    @property
    def last(self) -> str:
        """The last line of stderr."""
        return (self.said.strip().splitlines() or [""])[-1]


class Place:
    """The folder in which all runs happen, one command after the other, so that paths are the same in all files.

    Args:
        folder: the folder.

    Attributes:
        deadline: when the minutes are over, by ``time.monotonic``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.disk, self.out = folder, folder / "disk", folder / OUT
        self._journal = folder / "journal"
        self.deadline = math.inf

    def clear(self, command: Command, cache: Path | None = None) -> None:
        """Begin again with a command, and the cache of an earlier run where one is given."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.disk.mkdir(parents=True)
        if cache is not None and cache.is_dir():
            shutil.copytree(cache, self.folder / "cache")
        if command.finished is not None:
            shutil.copytree(command.finished, self.out)

    def start(self, command: Command, out: str = OUT, clock: float = 0.0) -> int:
        """Start a command in a fork with a session of its own, and return the process's id.

        Args:
            command: the command.
            out: its output folder.
            clock: seconds by which its clock is fast.
        """
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ["UNIMOE_CACHE"] = str(self.folder / "cache")
            _write_down_replacements(self._journal)
            if clock:
                _move_clock(clock)
            sys.argv = ["unimoe", *(part.replace("OUT", out) for part in command.arguments)]
            if command.script is None:
                from unimoe.cli.main import main

                main()
            else:
                runpy.run_path(str(command.script), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, child: int, patience: float, moment: float = 0.0, number: int | None = None) -> Ending:
        """Wait for a run, at most for ``patience`` seconds; at a moment send it a signal, if one is given.

        Raises:
            OutOfTimeError: the minutes are over; the run is killed.
        """
        begin = time.monotonic()
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            passed = time.monotonic() - begin
            if done:
                break
            if time.monotonic() > self.deadline or passed > patience:
                _kill(child)
            elif number is not None and passed >= moment:
                _kill(child) if number == signal.SIGKILL else os.kill(child, number)
                number = None
            time.sleep(0.004)
        _kill(child)  # what it has started
        if time.monotonic() > self.deadline:
            raise OutOfTimeError
        said = (self.folder / "stderr").read_text("utf-8", "replace") if (self.folder / "stderr").exists() else ""
        if passed > patience:
            said += f"\nkilled after {passed:.0f} s"
        return Ending(os.waitstatus_to_exitcode(status), passed, said)

    def files(self) -> dict[str, bytes]:
        """Return the files of the output folder without times."""
        return files_without_times(self.out)

    def units(self) -> Counter[str]:
        """Return how often each unit of work was done."""
        lines = self._journal.read_text("utf-8").splitlines() if self._journal.exists() else []
        return Counter(line for line in lines if UNITS.search(line))

    def temporary(self) -> list[str]:
        """Return temporary files that were left."""
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if _TEMPORARY.search(path.name)]


def _write_down_replacements(journal: Path) -> None:
    """Append the name of every file or folder that is put into its place to a journal."""
    replace, root = os.replace, f"{journal.parent}/"

    def recorded(source: Any, target: Any, **options: Any) -> None:
        replace(source, target, **options)
        with journal.open("a", encoding="utf-8") as file:
            file.write(f"{os.fspath(target).removeprefix(root)}\n")

    os.replace = recorded  # type: ignore[assignment]


def _move_clock(seconds: float) -> None:
    """Let Python's clocks in this process be fast, or slow."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Moved:
            return super().now(tz) + datetime.timedelta(seconds=seconds)

    for module in list(sys.modules.values()):
        if vars(module).get("datetime") is datetime.datetime:
            vars(module)["datetime"] = Moved


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def in_fork(work: Callable[[], object]) -> None:
    """Do work in a copy of this process, whose libraries stay as they are after the import."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the inputs could not be written; the error is above")


def beside(opened: Callable[[], AbstractContextManager[str]]) -> str:
    """Keep something open in another process until this one ends, and return its address."""
    told, tell = os.pipe()
    waits, until_the_end = os.pipe()
    if not os.fork():
        try:
            os.close(until_the_end)
            os.setsid()
            with opened() as address:
                os.write(tell, address.encode())
                os.close(tell)
                os.read(waits, 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(tell)
    os.close(waits)
    address = os.read(told, 1000).decode()
    os.close(told)
    if not address:
        raise RuntimeError("a server could not be started; the error is above")
    return address
