"""Batches of sequences: within a budget of tokens, padded, on the device, and smaller where memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unimoe.core.errors import DataError
from unimoe.models.device import release_memory

T = TypeVar("T")

Plan = Callable[[Sequence[list[int]], int, int | None], list[list[int]]]
"""From sequences, the tokens of a batch, and the sequences of one where they count instead, to the indices of each."""

logger = logging.getLogger(__name__)

CPU_TOKENS, GPU_TOKENS = 2048, 16384
"""Padded tokens of one forward pass: on a CPU, batches whose activations exceed the caches take twice the time per
token; a GPU needs large ones."""


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in batches of a size."""
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def default_token_budget(device: torch.device) -> int:
    """Return the padded tokens of one forward pass where the config sets none."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def plan_batches(lengths: Sequence[int], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Group indices into batches, longest first, so that memory peaks at the start and not after hours.

    Args:
        lengths: tokens of each sequence.
        token_budget: padded tokens of a batch; a longer sequence is a batch alone.
        batch_size: sequences of a batch, instead of the budget.

    Returns:
        Every index exactly once; no batch holds sequences less than half as long as its longest. The batches depend on
        the lengths alone; sequences of one length keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        room = batch_size or token_budget // max(1, longest)
        if batches and len(batches[-1]) < room and 2 * lengths[index] >= longest:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches


def pad_ids(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad token ids on the right with 0 to ``(N, longest)``.

    They need no attention mask: under causal attention a token never sees the tokens on its right.
    """
    return to_device(pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True), device)


def pad_states(states: Sequence[Tensor]) -> Tensor:
    """Pad hidden states ``(length, H)`` on the right with 0 to ``(N, longest, H)``."""
    return pad_sequence(list(states), batch_first=True)


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


def if_it_fits(compute: Callable[[], T]) -> T | None:
    """Return what a function computes; None where memory runs out.

    cuBLAS and cuDNN report that by errors of their own, without a class.
    """
    try:
        return compute()
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "STATUS_ALLOC_FAILED" not in str(error):
            raise
    return None  # leaving the block drops the traceback, which holds the activations


def padded_tokens(sequences: Sequence[list[int]]) -> int:
    """Return the tokens of a padded batch."""
    return len(sequences) * max(map(len, sequences))


def plan_padded(sequences: Sequence[list[int]], token_budget: int, batch_size: int | None) -> list[list[int]]:
    """Group the indices of sequences into padded batches."""
    return plan_batches([len(ids) for ids in sequences], token_budget, batch_size)


class FittingBatches:
    """Computes batches, and remembers the size of one that did not fit: all later ones have at most half of it.

    Args:
        what: one of the inputs, as in ``a text``.
        setting: the key that cuts an input.
        unit: what the size of a batch counts.

    Attributes:
        reduced: the size of a batch after memory ran out; None before.
    """

    def __init__(self, what: str, setting: str, unit: str = "tokens") -> None:
        self._what, self._setting, self._unit = what, setting, unit
        self.reduced: int | None = None

    def run(
        self,
        sequences: Sequence[list[int]],
        compute: Callable[[list[int], Any], T],
        *,
        budget: int,
        batch_size: int | None,
        plan: Plan = plan_padded,
        tokens: Callable[[Sequence[list[int]]], int] = padded_tokens,
        prepare: Callable[[list[list[int]]], Iterable[Any]] | None = None,
    ) -> Iterator[tuple[list[int], T]]:
        """Yield the indices of each batch with what is computed of it.

        Args:
            sequences: token ids.
            compute: takes the indices of a batch, and what was prepared of it.
            budget: tokens of a batch.
            batch_size: sequences of a batch, instead of the budget, until memory runs out.
            plan: groups sequences into batches.
            tokens: of one batch.
            prepare: makes of the batches what ``compute`` takes of each; None where it takes nothing.

        Raises:
            DataError: a batch of one sequence does not fit in memory.
        """
        left = list(range(len(sequences)))
        while left:
            limit, size = (min(budget, self.reduced), None) if self.reduced else (budget, batch_size)
            planned = plan([sequences[index] for index in left], limit, size)
            batches, done = [[left[index] for index in batch] for batch in planned], set[int]()
            for batch, prepared in zip(batches, prepare(batches) if prepare else [None] * len(batches), strict=True):
                members = [sequences[index] for index in batch]
                values = self.attempt(partial(compute, batch, prepared), tokens(members), len(batch))
                if values is None:
                    break
                done.update(batch)
                yield batch, values
            left = [index for index in left if index not in done]

    def attempt(self, compute: Callable[[], T], size: int, inputs: int) -> T | None:
        """Return what a function computes of a batch; None where it does not fit, after which batches are smaller.

        Args:
            compute: computes the batch.
            size: of the batch.
            inputs: how many it has.

        Raises:
            DataError: the batch has one input.
        """
        found = if_it_fits(compute)
        if found is not None:
            return found
        if inputs == 1:
            length = f" of {size} tokens" if self._unit == "tokens" else ""
            raise DataError(
                f"{self._what}{length} alone does not fit in memory; lower {self._setting}, "
                "or use a smaller model or another --device"
            )
        self.reduced = size // 2
        logger.warning("out of memory: batches of at most %d %s from now on", self.reduced, self._unit)
        release_memory()
        return None
