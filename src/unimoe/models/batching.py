"""Batches by token budget: sequences of similar length together, so that little is padded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def default_token_budget(device: torch.device) -> int:
    """Padded tokens of one forward pass where the config leaves it open.

    On a CPU, batches whose activations outgrow the caches take twice the time per token; a GPU wants large ones.
    """
    return 2048 if device.type == "cpu" else 16384


def plan_batches(lengths: Sequence[int], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Indices grouped into batches, longest first, so that memory peaks at the start rather than at hour three.

    Args:
        lengths: tokens of each sequence.
        token_budget: padded tokens of a batch; a single longer sequence is a batch of its own.
        batch_size: sequences of a batch, instead of the budget.

    Returns:
        Every index exactly once; no batch holds sequences less than half as long as its longest. Depends on the
        lengths alone, ties in the order given.
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
    """Token ids padded on the right with 0, shape ``(N, longest)``.

    No attention mask goes with them: under causal attention a token never sees what stands to its right.
    """
    return pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True).to(device)


def pad_states(states: Sequence[Tensor]) -> Tensor:
    """Hidden states of shape ``(length, H)`` each, padded on the right with 0 to ``(N, longest, H)``."""
    return pad_sequence(list(states), batch_first=True)


def last_tokens(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """The state of each sequence's last token, shape ``(N, H)``, out of right-padded ``(N, L, H)``."""
    rows = torch.arange(len(lengths), device=states.device)
    return states[rows, torch.tensor(lengths, device=states.device) - 1]
