"""Keeping a GPU busy: the next batch is prepared in a thread, and results stay on the device until many are fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from unimoe.core.errors import InputError

_HELD = 2**26
"""Values that stay on a device: 256 MiB, those of 65,000 embeddings of 1,024 dimensions."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item], threads: int = 1) -> Generator[Made, None, None]:
    """Yield what is made of each item, in order; threads make that of the next ones while the caller uses this one.

    After an error no more are begun, and those under way are waited for.
    """
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def gather(
    inputs: int,
    batches: Iterable[tuple[Sequence[int], Tensor]],
    reason: str,
    advance: Callable[[int], None] | None = None,
    spoils: Callable[[int], bool] | None = None,
) -> Tensor | None:
    """Return the values ``(N, ...)`` of all inputs on the CPU, in their order; None where there are none.

    They are checked and fetched at once from a CPU, and many batches together from a GPU, which every fetch lets wait.

    Args:
        inputs: N.
        batches: the indices of B inputs with their values ``(B, ...)``; each input once.
        reason: of the error about a value that is not finite.
        advance: called with the number of inputs done, after each batch.
        spoils: whether an input alone has such a value: it may spoil those of its batch.

    Raises:
        InputError: a value is not finite; carries the index of its input.
    """
    gathered: Tensor | None = None
    held: list[tuple[Sequence[int], Tensor]] = []
    count = 0  # of the values held

    def fetch() -> None:
        nonlocal gathered, count
        values = torch.cat([values for _, values in held]).cpu()
        places = [index for batch, _ in held for index in batch]
        if not bool(values.isfinite().all()):
            finite = values.reshape(len(values), -1).isfinite().all(dim=1).tolist()
            spoilt = sorted(index for index, fine in zip(places, finite, strict=True) if not fine)
            raise InputError(next(filter(spoils, spoilt), spoilt[0]) if spoils else spoilt[0], reason)
        if gathered is None:
            gathered = values.new_empty(inputs, *values.shape[1:])
        gathered[places] = values
        held.clear()
        count = 0

    for batch, values in batches:
        held.append((batch, values))
        count += values.numel()
        if values.device.type == "cpu" or count > _HELD:
            fetch()
        if advance:
            advance(len(batch))
    if held:
        fetch()
    return gathered
