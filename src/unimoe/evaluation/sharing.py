"""One model's work shared among processes: the leader holds the data and hands out parts, and all of them compute.

The leader runs the evaluation; the others ``serve``. A part is computed by one process and depends on nothing else, so
that the results are those of one process. What fails in a process fails in the leader, and the others wait for the
next part.
"""

from __future__ import annotations

import builtins
import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe import errors
from unimoe.errors import InputError
from unimoe.models.embedder import Advance, Vectors
from unimoe.processes import Processes
from unimoe.retrieval.vector_store import Encode, Spread, cut_units

Part = dict[str, Any]
"""Work that one process does, as JSON values."""

Compute = Callable[[Part], NDArray[np.floating]]

ENCODED_CHARACTERS = 2**18
"""Text of a part of ``encode_texts``: a few forward passes of a GPU, seconds of a small model on two cores."""


def compute_parts(processes: Processes, job: str, parts: Iterable[Part], own: Compute) -> Iterator[NDArray[Any]]:
    """Yield what a job makes of each part, in order; the leader's side of ``serve``.

    Args:
        processes: each computes one part at a time, with the leader.
        job: its name among the jobs of the processes that serve.
        parts: taken one for each process at a time.
        own: does the job in this process.

    Raises:
        Exception: of the first part that failed, after the results of those before it.
    """
    if processes.size == 1:
        yield from map(own, parts)
        return
    left = iter(parts)
    while batch := list(islice(left, processes.size)):
        processes.broadcast(json.dumps({"job": job, "parts": batch}).encode())
        yield from map(_unpacked, _replies(processes, batch, own)[: len(batch)])


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


def shared(processes: Processes, **options: Any) -> Spread:
    """Return what embeds units of texts in several processes.

    ``options`` are the arguments of ``Embedder.encode`` in the others; the leader's own function has the same.
    """

    def spread(encode: Encode, units: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        parts = ({"texts": list(unit), "options": options} for unit in units)
        return compute_parts(processes, "encode", parts, lambda part: encode(part["texts"]))

    return spread


def encode_texts(encode: Encode, texts: Sequence[str], spread: Spread, progress: Progress) -> Vectors:
    """Embed N texts in memory, in units that depend on the texts alone; report every unit.

    Returns:
        ``(N, D)`` in the order of ``texts``.

    Raises:
        InputError: a text cannot be embedded; carries its index in ``texts``.
    """
    units = [np.sort(unit) for unit in cut_units([len(text) for text in texts], ENCODED_CHARACTERS)]
    found: list[Vectors] = []
    try:
        for vectors in spread(encode, ([texts[row] for row in unit] for unit in units)):
            progress.part(len(vectors))
            found.append(vectors)
    except InputError as error:
        raise InputError(int(units[len(found)][error.index]), error.reason) from None
    if len(found) < 2:
        return found[0] if found else encode([])
    whole = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
    whole[np.concatenate(units)] = np.concatenate(found)
    return whole


class Progress:
    """Counts the items of parts, of which those computed in this process have reported their batches before.

    Args:
        advance: called with the number of items done; None for nothing.
    """

    def __init__(self, advance: Advance | None) -> None:
        self._advance, self._ahead = advance, 0

    def batch(self, items: int) -> None:
        """Report a batch of a part under way."""
        self._ahead += items
        if self._advance and items:
            self._advance(items)

    def part(self, items: int) -> None:
        """Report what is left of a part that is done."""
        self.batch(max(0, items - self._ahead))
        self._ahead -= items


def _end(processes: Processes) -> None:
    if processes.leads and processes.size > 1:
        processes.broadcast(b"")
        processes.gather(b"")  # until they have read it: this process may exit now


def _replies(processes: Processes, parts: Sequence[Part], compute: Compute) -> list[bytes]:
    """Compute this process's part, and return in the leader the replies of all."""
    try:
        mine = parts[processes.rank : processes.rank + 1]
        reply = _packed(compute(mine[0])) if mine else b""
    except Exception as error:  # of whatever kind, the leader waits for the reply
        reply = _packed_error(error, processes.rank)
    return processes.gather(reply)


def _packed(values: NDArray[np.floating]) -> bytes:
    header = {"dtype": values.dtype.str, "shape": values.shape}
    return json.dumps(header).encode() + b"\n" + np.ascontiguousarray(values).tobytes()


def _packed_error(error: Exception, rank: int) -> bytes:
    trace = "".join(traceback.format_exception(error))
    told: dict[str, Any] = {
        "error": type(error).__name__,
        "message": str(error),
        "note": f"in process {rank}:\n{trace}",
    }
    if isinstance(error, InputError):
        told |= {"index": error.index, "reason": error.reason}
    return json.dumps(told).encode() + b"\n"


def _unpacked(reply: bytes) -> NDArray[Any]:
    """Return the values of a reply, or raise its error."""
    header, _, content = reply.partition(b"\n")
    told = json.loads(header)
    if "error" in told:
        error = _error(told)
        error.add_note(told["note"])
        raise error
    return np.frombuffer(content, dtype=told["dtype"]).reshape(told["shape"]).copy()  # which can be written to


def _error(told: Mapping[str, Any]) -> Exception:
    if told["error"] == "InputError":
        return InputError(told["index"], told["reason"])
    for place in (errors, torch, builtins):
        kind = getattr(place, told["error"], None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with suppress(TypeError):  # some take more than a message
                return kind(told["message"])
    return RuntimeError(f"{told['error']}: {told['message']}")
