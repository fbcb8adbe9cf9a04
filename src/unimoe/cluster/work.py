"""Work that any process can do: parts that are JSON values, and replies that travel as bytes.

A part depends on nothing but the model and itself, so that the results are the same wherever it is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from unimoe.models.embedder import Advance

Part = dict[str, Any]
"""Work that one process does."""

Compute = Callable[[Part], Any]
"""What a process makes of a part: an array, or JSON values."""

Recipe = Mapping[str, Any]
"""How a process on another machine makes a model, as JSON values; ``maker`` is the function that does."""


class Workers(Protocol):
    """Processes that hold one model, and share its work."""

    @property
    def size(self) -> int:
        """How many there are."""

    def compute(self, job: str, parts: Iterable[Part], own: Compute) -> Iterator[Any]:
        """Yield what a job makes of each part, in order.

        Args:
            job: its name among the jobs that all of them know.
            parts: taken when there is somebody to compute them.
            own: does the job in this process.
        """


class ThisProcess:
    """Computes every part where it is asked for."""

    size = 1

    def compute(self, job: str, parts: Iterable[Part], own: Compute) -> Iterator[Any]:
        """Compute one part after the other."""
        yield from map(own, parts)


ALONE = ThisProcess()


def nowhere(part: Part) -> Any:
    """Do nothing: the own job of a process that holds no model, where workers do all of them."""
    raise AssertionError("this process holds no model")


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


def packed(value: Any) -> bytes:
    """Return what a job made as bytes: a line of JSON, and the numbers of an array."""
    if not isinstance(value, np.ndarray):
        return json.dumps({"value": value}).encode() + b"\n"
    header = {"dtype": value.dtype.str, "shape": value.shape}
    return json.dumps(header).encode() + b"\n" + np.ascontiguousarray(value).tobytes()


def unpacked(reply: bytes) -> Any:
    """Return what a job made; arrays can be written to."""
    header, _, numbers = reply.partition(b"\n")
    content = json.loads(header)
    if "value" in content:
        return content["value"]
    return np.frombuffer(numbers, dtype=content["dtype"]).reshape(content["shape"]).copy()
