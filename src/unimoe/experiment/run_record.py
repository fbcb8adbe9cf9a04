"""The record of what a job has cost: ``run.json`` in its output folder, written whenever a phase ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from unimoe.core.io import read_json, write_json

RECORD = "run.json"


class _Costs(BaseModel):
    matmul_tflop: float = 0.0
    seconds: float = 0.0
    peak_mib: float = 0.0

    def add(self, tflop: float, seconds: float) -> None:
        self.matmul_tflop = round(self.matmul_tflop + tflop, 6)
        self.seconds = round(self.seconds + seconds, 6)
        self.peak_mib = round(max(self.peak_mib, peak_mib()), 1)


class _Record(_Costs):
    model_config = ConfigDict(extra="allow")  # facts about the run

    phases: dict[str, _Costs] = Field(default_factory=dict)


class RunRecord:
    """Adds up the work, the seconds and the memory of a job, over all runs of it in one folder.

    ``flop`` returns the floating-point operations counted so far in this process, and the job started at ``since``, by
    ``time.perf_counter``; what came before the first phase is added to it.
    """

    def __init__(self, folder: Path, flop: Callable[[], int], since: float) -> None:
        self._path, self._flop, self._since, self._flop_before = folder / RECORD, flop, since, 0

    @property
    def elapsed(self) -> float:
        """Seconds in the phases so far, those of earlier runs included."""
        return self._read().seconds

    def noted(self, name: str) -> Any:
        """Return a fact that this run or an earlier one noted; None where none did."""
        return self._read().model_dump().get(name)

    def note(self, facts: Mapping[str, Any], *, keep: bool = False) -> None:
        """Write facts about the run beside its phases; with ``keep``, one that is there stays as it is."""
        there = self._read().model_dump()
        write_json(self._path, {**facts, **there} if keep else {**there, **facts})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block takes to the phase of this name; a block that fails, or is killed, adds nothing."""
        yield
        now, flop, record = time.perf_counter(), self._flop(), self._read()
        for costs in (record, record.phases.setdefault(name, _Costs())):
            costs.add((flop - self._flop_before) / 1e12, now - self._since)
        self._since, self._flop_before = now, flop
        write_json(self._path, record.model_dump())

    def _read(self) -> _Record:
        return read_json(self._path, _Record) if self._path.exists() else _Record()


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB."""
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
