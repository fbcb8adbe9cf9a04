"""Batches of sequences: within a budget of tokens, padded, on the device, and smaller where memory runs out.

A GPU is kept busy: nothing waits for it until the results of many batches are fetched together.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unimoe.core.errors import DataError, InputError
from unimoe.models.device import release_memory, without_cudnn_attention

Input = TypeVar("Input")
Made = TypeVar("Made")

logger = logging.getLogger(__name__)

CPU_TOKENS, GPU_TOKENS = 2048, 16384
"""Padded tokens of one forward pass: on a CPU, batches with activations larger than the caches take twice the time per
token; a GPU needs large ones."""

_HELD = 2**26
"""Values that stay on a device: 256 MiB, those of 65,000 embeddings of 1,024 dimensions."""


def batches(items: Sequence[Input], size: int) -> Iterator[Sequence[Input]]:
    """Yield the items in batches of a size."""
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def default_token_budget(device: torch.device) -> int:
    """Return the padded tokens of one forward pass where the config sets none."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def used_budget(
    device: torch.device, reduced: int | None, token_budget: int | None = None, batch_size: int | None = None
) -> int | None:
    """Return the tokens of one forward pass, fewer once memory ran out; None where sequences are counted instead."""
    return reduced if reduced or batch_size else token_budget or default_token_budget(device)


def plan_padded(sequences: Sequence[Sized], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Group indices into padded batches, longest first, so that memory peaks at the start and not after hours.

    A batch holds ``batch_size`` sequences, else ``token_budget`` tokens with padding or one longer sequence, and none
    less than half as long as its longest. It depends on the lengths alone; equal ones keep their order.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(sequences)), key=lambda index: -len(sequences[index])):
        length, room = len(sequences[index]), batch_size or token_budget // max(1, longest)
        if batches and len(batches[-1]) < room and 2 * length >= longest:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = length
    return batches


def padded_tokens(sequences: Sequence[Sized]) -> int:
    """Return the tokens of a padded batch."""
    return len(sequences) * max(map(len, sequences))


def pad_ids(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad token ids on the right with 0 to ``(N, longest)``.

    They need no attention mask: under causal attention a token never sees the tokens on its right.
    """
    return to_device(pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a GPU from pinned memory, without waiting for what it computes."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    with torch.cuda.device(device):  # a thread begins with the first GPU
        return tensor.pin_memory().to(device, non_blocking=True)


def arrays_to_device(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Copy integers to a device, all arrays at once."""
    joined = to_device(torch.from_numpy(np.concatenate(arrays)), device)
    return list(torch.split(joined, [len(array) for array in arrays]))


def last_tokens(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the state of each sequence's last token, ``(N, H)``, from right-padded states ``(N, L, H)``."""
    rows = torch.arange(len(lengths), device=states.device)
    return states[rows, to_device(torch.tensor(lengths) - 1, states.device)]


class FittingBatches:
    """Computes batches, and remembers the size of one that did not fit: all later ones have at most half of it.

    Messages call one of the inputs ``what``, and name the ``setting`` that cuts it; sizes count ``unit``. ``plan``
    groups the indices of inputs by a budget, the ``size`` of a batch at most, or by the number of inputs in a batch.
    """

    def __init__(
        self,
        what: str,
        setting: str,
        unit: str = "tokens",
        *,
        plan: Callable[[Sequence[Any], int, int | None], list[list[int]]] = plan_padded,
        size: Callable[[Sequence[Any]], int] = padded_tokens,
    ) -> None:
        self._what, self._setting, self._unit = what, setting, unit
        self._plan, self._size = plan, size
        self.reduced: int | None = None  # the size of a batch, once memory ran out

    def run(
        self, inputs: Sequence[Any], compute: Callable[[list[int]], Made], budget: int, batch_size: int | None = None
    ) -> Iterator[tuple[list[int], Made]]:
        """Yield the indices of each batch with what ``compute`` returns for them.

        The budget counts in place of a ``batch_size`` once memory ran out.
        """
        left = list(range(len(inputs)))
        while left:
            limit, count = (min(budget, self.reduced), None) if self.reduced else (budget, batch_size)
            done = set[int]()
            for places in self._plan([inputs[index] for index in left], limit, count):
                batch, values = [left[place] for place in places], None
                try:
                    with without_cudnn_attention:
                        values = compute(batch)
                except RuntimeError as error:
                    # cuBLAS and cuDNN report it by errors of their own, without a class.
                    if not isinstance(error, torch.OutOfMemoryError) and "STATUS_ALLOC_FAILED" not in str(error):
                        raise
                if values is None:  # here the traceback is gone, which held the activations
                    self._reduce(self._size([inputs[index] for index in batch]), alone=len(batch) == 1)
                    break
                done.update(batch)
                yield batch, values
            left = [index for index in left if index not in done]

    def _reduce(self, size: int, *, alone: bool) -> None:
        """Halve the size of a batch that did not fit; refuse an input that does not fit alone."""
        if alone:
            length = f" of {size} tokens" if self._unit == "tokens" else ""
            raise DataError(
                f"{self._what}{length} alone does not fit in memory; lower {self._setting}, "
                "or use a smaller model or another --device"
            )
        self.reduced = size // 2
        logger.warning("out of memory: batches of at most %d %s from now on", self.reduced, self._unit)
        release_memory()


def ahead(make: Callable[[Input], Made], items: Iterable[Input], threads: int = 1) -> Generator[Made, None, None]:
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
    shape: tuple[int, ...],
    batches: Iterable[tuple[Sequence[int], Tensor]],
    reason: str,
    advance: Callable[[int], None] | None = None,
    spoils: Callable[[int], bool] | None = None,
) -> Tensor:
    """Return the float32 values of N inputs on the CPU, in their order, in a tensor of a shape ``(N, ...)``.

    ``batches`` are the indices of B inputs with their values ``(B, ...)``, each input once. They are checked and
    fetched at once from a CPU, and many batches together from a GPU, which every fetch lets wait.

    Raises:
        InputError: a value is not finite, for ``reason``; carries the index of its input, by preference of one that
            ``spoils`` finds to have such a value alone, since it may spoil those of its batch.
    """
    gathered = torch.empty(shape)
    held: list[tuple[Sequence[int], Tensor]] = []

    def fetch() -> None:
        values = torch.cat([values for _, values in held]).cpu()
        places = [index for batch, _ in held for index in batch]
        if not bool(values.isfinite().all()):
            finite = values.reshape(len(values), -1).isfinite().all(dim=1).tolist()
            spoilt = sorted(index for index, fine in zip(places, finite, strict=True) if not fine)
            raise InputError(next(filter(spoils, spoilt), spoilt[0]) if spoils else spoilt[0], reason)
        gathered[places] = values
        held.clear()

    for batch, values in batches:
        held.append((batch, values))
        if values.device.type == "cpu" or sum(each.numel() for _, each in held) > _HELD:
            fetch()
        if advance:
            advance(len(batch))
    if held:
        fetch()
    return gathered
