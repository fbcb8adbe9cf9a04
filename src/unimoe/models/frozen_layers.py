"""The frozen lower layers of an adapted model, and their states.

If only the upper layers have adapters, the layers below compute the same states for every arm and seed, and need no
gradient. Their states are computed once and shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.core.errors import UsageError
from unimoe.core.io import hash_parts
from unimoe.models.base import layer_kinds, with_modules
from unimoe.models.batching import arrays_to_device, default_token_budget
from unimoe.models.token_tree import build_tree, plan_trees, tree_tokens
from unimoe.models.tree_attention import PackedTree, pack, run_tree

MEMORY_LIMIT = 2**30
"""Bytes of states kept for one set of sequences; a larger set is computed in every pass."""

SETS_LIMIT = 2 * 2**30
"""Bytes of states kept for all sets together; beyond it the least recently used set is dropped."""


@dataclass(frozen=True)
class TokenStates:
    """The states of one sequence below the first adapted layer."""

    block: Tensor  # (T, H), of all tokens of a set of sequences, those of a shared beginning once
    places: Tensor  # (length,), where in it the sequence's tokens are

    def tokens(self, begin: int = 0) -> Tensor:
        """Return the states of the tokens from ``begin`` on, ``(length - begin, H)``."""
        return self.block[self.places[begin:]]


FrozenStates = Sequence[TokenStates]
"""The states of each sequence of a set."""


def tree_states(tree: PackedTree, frozen: FrozenStates) -> Tensor:
    """Return the states of a tree's row, ``(1, T, H)``, from those of its sequences."""
    rows = [frozen[member].tokens(shared) for member, shared in tree.tree.parts]
    filling = tree.ids.shape[1] - len(tree.tree.ids)
    return torch.cat([*rows, rows[0].new_zeros(filling, rows[0].shape[1])])[None]


def split_decoder(decoder: Any, first_layer: int) -> tuple[Any, Any]:
    """Split a decoder of transformers at ``first_layer`` into two that share its weights.

    The upper one takes the lower one's states as ``inputs_embeds``.
    """
    if not hasattr(decoder, "layers") or not hasattr(decoder, "norm"):
        raise UsageError("lora.first_layer: the layers of this model cannot be split; set it to 0")
    count = len(decoder.layers)
    if not 0 < first_layer < count:
        raise UsageError(f"lora.first_layer {first_layer}: this model has layers 0 to {count - 1}; 0 adapts them all")
    refuse_mixed_layers(layer_kinds(decoder.config))
    lower = with_modules(decoder, layers=decoder.layers[:first_layer], norm=nn.Identity())
    upper = with_modules(decoder, layers=decoder.layers[first_layer:])
    return lower, upper


def refuse_mixed_layers(kinds: Sequence[str]) -> None:
    """Raise a ``UsageError`` about a decoder to be split that has layers of several kinds."""
    if len(set(kinds)) > 1:
        raise UsageError("lora.first_layer: this model mixes kinds of layers; set it to 0")


class FrozenLayers:
    """Computes and keeps the states of the lower decoder of ``split_decoder``, which runs over token trees."""

    def __init__(self, lower: Any) -> None:
        self._lower = lower
        self._kept: dict[str, list[TokenStates]] = {}

    @property
    def token_bytes(self) -> int:
        """Bytes of the states of one token."""
        weight = self._lower.embed_tokens.weight
        return int(weight.shape[1] * weight.element_size())

    def states(self, sequences: Sequence[list[int]], *, varlen: bool = False) -> FrozenStates | None:
        """Return the states of sequences of token ids, or None if they exceed ``MEMORY_LIMIT``; see ``pack``."""
        if tree_tokens(sequences) * self.token_bytes > MEMORY_LIMIT:
            return None
        key = hash_parts(",".join(map(str, ids)) for ids in sequences)
        # Removed and added again: the order of the keys is the order of use.
        states = self._kept.pop(key) if key in self._kept else self._compute(sequences, varlen)
        self._kept[key] = states
        while sum(kept[0].block.nbytes for kept in self._kept.values() if kept) > SETS_LIMIT:
            del self._kept[next(iter(self._kept))]
        return states

    @torch.inference_mode(False)
    @torch.no_grad()
    def _compute(self, sequences: Sequence[list[int]], varlen: bool) -> list[TokenStates]:
        """Compute all states in one block: thousands of small ones would keep memory between them from being freed."""
        weight = self._lower.embed_tokens.weight
        plan = plan_trees(sequences, default_token_budget(weight.device))
        trees = [build_tree([sequences[index] for index in batch]) for batch in plan]
        block = weight.new_empty(sum(len(tree.ids) for tree in trees), weight.shape[1])
        found: dict[int, TokenStates] = {}
        begin = 0
        for batch, tree in zip(plan, trees, strict=True):
            count = len(tree.ids)
            packed = pack(tree, weight.device, weight.dtype, varlen=varlen)
            block[begin : begin + count] = self.compute_row(packed)[0, :count]
            rows = arrays_to_device(tree.paths, weight.device)
            found |= {index: TokenStates(block, own + begin) for index, own in zip(batch, rows, strict=True)}
            begin += count
        return [found[index] for index in range(len(sequences))]

    @torch.inference_mode(False)
    @torch.no_grad()
    def compute_row(self, tree: PackedTree) -> Tensor:
        """Return the states of a packed row without keeping them, ``(1, T, H)``."""
        return run_tree(self._lower, tree)
