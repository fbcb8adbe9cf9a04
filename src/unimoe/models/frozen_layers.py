"""The frozen lower layers of an adapted model, and their states.

If only the upper layers have adapters, the layers below compute the same states for every arm and seed, and need no
gradient. Their states are computed once and shared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.errors import UsageError
from unimoe.io import hash_parts
from unimoe.models.base import layer_kinds
from unimoe.models.batching import default_token_budget, pad_ids, plan_batches
from unimoe.models.tree_attention import PackedTree, run_tree

MEMORY_LIMIT = 2**30
"""Bytes of states kept for one set of sequences; a larger set is computed in every pass."""

SETS_LIMIT = 2 * 2**30
"""Bytes of states kept for all sets together; beyond it the least recently used set is dropped."""

FrozenStates = Sequence[Tensor]
"""One tensor ``(length, H)`` per sequence: its states below the first adapted layer."""


def split_decoder(decoder: Any, first_layer: int) -> tuple[Any, Any]:
    """Split a decoder of transformers at ``first_layer`` into two that share its weights.

    The upper one takes the lower one's states as ``inputs_embeds``.

    Raises:
        UsageError: no such layer, or layers of several kinds (such as sliding-window attention in some).
    """
    count = len(decoder.layers)
    if not 0 < first_layer < count:
        raise UsageError(f"lora.first_layer {first_layer}: this model has layers 0 to {count - 1}; 0 adapts them all")
    refuse_mixed_layers(layer_kinds(decoder.config))
    lower = _with_modules(decoder, layers=decoder.layers[:first_layer], norm=nn.Identity())
    upper = _with_modules(decoder, layers=decoder.layers[first_layer:])
    return lower, upper


def refuse_mixed_layers(kinds: Sequence[str]) -> None:
    """Refuse to split a decoder whose layers are of several kinds.

    Raises:
        UsageError: they are.
    """
    if len(set(kinds)) > 1:
        raise UsageError("lora.first_layer: this model mixes kinds of layers; set it to 0")


class FrozenLayers:
    """Computes and keeps the states of the frozen lower layers.

    Args:
        lower: the lower decoder of ``split_decoder``.

    Batches are planned over the whole list of sequences, never over the missing ones: states depend in their last bits
    on the shape of the batch, and a resumed run must get the same bits as an uninterrupted one.
    """

    def __init__(self, lower: Any) -> None:
        self._lower = lower
        self._kept: dict[str, list[Tensor]] = {}

    def states(self, sequences: Sequence[Sequence[int]]) -> FrozenStates | None:
        """Return the states of sequences of token ids, or None if they exceed ``MEMORY_LIMIT``."""
        weight = self._lower.embed_tokens.weight
        if sum(map(len, sequences)) * weight.shape[1] * weight.element_size() > MEMORY_LIMIT:
            return None
        key = hash_parts(",".join(map(str, ids)) for ids in sequences)
        return self._kept_or(key, lambda: self._compute(sequences, weight.device))

    def row_states(self, tree: PackedTree) -> Tensor:
        """Return the states of a packed row of T tokens, ``(1, T, H)``."""
        return self._kept_or(tree.key, lambda: [self._compute_row(tree)])[0]

    def _kept_or(self, key: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        # Removed and added again: the order of the keys is the order of use.
        states = self._kept.pop(key) if key in self._kept else compute()
        self._kept[key] = states
        while sum(map(_bytes, self._kept.values())) > SETS_LIMIT:
            del self._kept[next(iter(self._kept))]
        return states

    @torch.inference_mode(False)
    @torch.no_grad()
    def _compute(self, sequences: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
        lengths = [len(ids) for ids in sequences]
        weight = self._lower.embed_tokens.weight
        # One block for all: thousands of small ones between large activations would keep these from being freed.
        block = torch.empty(sum(lengths), weight.shape[1], dtype=weight.dtype, device=device)
        states = list(torch.split(block, lengths)) if lengths else []
        for batch in plan_batches(lengths, default_token_budget(device)):
            ids = pad_ids([sequences[index] for index in batch], device)
            hidden = self._lower(input_ids=ids, use_cache=False).last_hidden_state
            for row, index in enumerate(batch):
                states[index].copy_(hidden[row, : lengths[index]])
        return states

    @torch.inference_mode(False)
    @torch.no_grad()
    def _compute_row(self, tree: PackedTree) -> Tensor:
        hidden: Tensor = run_tree(self._lower, tree)
        return hidden


def _bytes(states: Sequence[Tensor]) -> int:
    return sum(state.nbytes for state in states)


def _with_modules(decoder: Any, **modules: nn.Module) -> Any:
    """Return a shallow copy with some child modules replaced; it shares the others, and all weights."""
    twin = copy.copy(decoder)
    twin._modules = {**decoder._modules, **modules}
    return twin
