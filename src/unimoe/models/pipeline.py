"""Keeping a GPU busy: the next batch is prepared in a thread, and results stay on the device until many are fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

_HELD = 2**26
"""Values that stay on a device: 256 MiB, those of 65,000 embeddings of 1,024 dimensions."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yield what is made of each item; that of the next one is made in a thread while the caller uses this one."""
    with ThreadPoolExecutor(1) as thread:
        waiting: deque[Future[Made]] = deque()
        for item in items:
            waiting.append(thread.submit(make, item))
            if len(waiting) == 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Gathered:
    """The values of N inputs, which come in batches, in the order of the inputs.

    Args:
        inputs: N.
        refuse: raises the error about a batch with a value that is not finite, from its indices and values.
    """

    def __init__(self, inputs: int, refuse: Callable[[Sequence[int], Tensor], None]) -> None:
        self._inputs, self._refuse = inputs, refuse
        self._held: list[tuple[Sequence[int], Tensor]] = []
        self._count = 0  # of the values held
        self._values: Tensor | None = None

    def add(self, batch: Sequence[int], values: Tensor) -> None:
        """Take the values ``(B, ...)`` of the inputs of some indices.

        They are checked and fetched at once from a CPU, and many batches together from a GPU, which every fetch lets
        wait.
        """
        self._held.append((batch, values))
        self._count += values.numel()
        if values.device.type == "cpu" or self._count > _HELD:
            self._fetch()

    def values(self) -> Tensor | None:
        """Return the values ``(N, ...)`` of all inputs, on the CPU; None where there are none."""
        if self._held:
            self._fetch()
        return self._values

    def _fetch(self) -> None:
        values = torch.cat([values for _, values in self._held]).cpu()
        if not bool(values.isfinite().all()):
            for batch, part in self._held:
                if not bool(part.isfinite().all()):
                    self._refuse(batch, part)
        if self._values is None:
            self._values = values.new_empty(self._inputs, *values.shape[1:])
        self._values[[index for batch, _ in self._held for index in batch]] = values
        self._held.clear()
        self._count = 0
