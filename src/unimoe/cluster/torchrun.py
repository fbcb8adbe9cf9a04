"""One model's work shared among the processes of ``torchrun``: the leader holds the data and hands out parts.

The leader runs the evaluation; the others ``serve``. What fails in a process fails in the leader, and the others wait
for the next part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from unimoe.cluster.processes import Processes
from unimoe.cluster.work import Compute, Part, packed, packed_error, unpacked


class Torchrun:
    """The leader's side of ``serve``: hands out parts, one for each process at a time."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def size(self) -> int:
        """The number of processes."""
        return self._processes.size

    def compute(self, job: str, parts: Iterable[Part], own: Compute) -> Iterator[Any]:
        """Yield what a job makes of each part; see ``Workers``."""
        if self.size == 1:
            yield from map(own, parts)
            return
        left = iter(parts)
        while batch := list(islice(left, self.size)):
            self._processes.broadcast(json.dumps({"job": job, "parts": batch}).encode())
            yield from map(unpacked, _replies(self._processes, batch, own)[: len(batch)])


def serve(processes: Processes, jobs: Mapping[str, Compute]) -> None:
    """Compute parts for the leader until it has no more."""
    while asked := processes.broadcast():
        request = json.loads(asked)
        _replies(processes, request["parts"], jobs[request["job"]])
    processes.gather(b"")


@contextmanager
def leading(processes: Processes) -> Iterator[None]:
    """End the others' ``serve`` after the block, however it ends; do nothing in the others.

    A block that is interrupted leaves them to their broken connection: they may be in the middle of a part.
    """
    try:
        yield
    except Exception:
        with suppress(RuntimeError):  # another process may have failed as well, and left
            _end(processes)
        raise
    _end(processes)


def _end(processes: Processes) -> None:
    if processes.leads and processes.size > 1:
        processes.broadcast(b"")
        processes.gather(b"")  # until they have read it: this process may exit now


def _replies(processes: Processes, parts: Sequence[Part], compute: Compute) -> list[bytes]:
    """Compute this process's part, and return in the leader the replies of all."""
    try:
        mine = parts[processes.rank : processes.rank + 1]
        reply = packed(compute(mine[0])) if mine else b""
    except Exception as error:  # of whatever kind, the leader waits for the reply
        reply = packed_error(error, f"process {processes.rank}")
    return processes.gather(reply)
