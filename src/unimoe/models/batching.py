"""Batches of sequences of similar length, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

T = TypeVar("T")

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
