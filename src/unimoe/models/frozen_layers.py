"""The frozen lower layers of an adapted model, and their states.

If only the upper layers have adapters, the layers below compute the same states for every arm and seed, and need no
gradient. Their states are computed once and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.core.errors import UsageError
from unimoe.core.io import hash_parts
from unimoe.models.base import layer_kinds, with_modules
from unimoe.models.batching import arrays_to_device, default_token_budget, pad_ids, plan_batches
from unimoe.models.token_tree import TokenTree, build_tree, places, plan_trees, tree_tokens
from unimoe.models.tree_attention import PackedTree, pack, run_tree

MEMORY_LIMIT = 2**30
"""Bytes of states kept for one set of sequences; a larger set is computed in every pass."""

SETS_LIMIT = 2 * 2**30
"""Bytes of states kept for all sets together; beyond it the least recently used set is dropped."""


@dataclass(frozen=True)
class TokenStates:
    """The states of one sequence below the first adapted layer.

    Attributes:
        block: ``(T, H)``, the states of all tokens of a set of sequences, those of a shared beginning once.
        places: where in it the sequence's tokens are, ``(length,)``.
    """

    block: Tensor
    places: Tensor

    def between(self, begin: int, end: int) -> Tensor:
        """Return the states of the tokens from ``begin`` to before ``end``, ``(end - begin, H)``."""
        return self.block[self.places[begin:end]]

    @property
    def whole(self) -> Tensor:
        """The states of all tokens, ``(length, H)``."""
        return self.block[self.places]


FrozenStates = Sequence[TokenStates]
"""The states of each sequence of a set."""


def tree_states(tree: TokenTree, frozen: FrozenStates) -> Tensor:
    """Return the states of a tree's row, ``(1, T, H)``, from those of its sequences."""
    rows: list[Tensor] = []
    for segment in tree.segments:
        first, count = tree.positions[segment.begin], segment.end - segment.begin
        if segment.member < 0:
            rows.append(rows[0].new_zeros(count, rows[0].shape[1]))
        else:
            rows.append(frozen[segment.member].between(first, first + count))
    return torch.cat(rows)[None]


def split_decoder(decoder: Any, first_layer: int) -> tuple[Any, Any]:
    """Split a decoder of transformers at ``first_layer`` into two that share its weights.

    The upper one takes the lower one's states as ``inputs_embeds``.

    Raises:
        UsageError: no such layer, or layers of several kinds (such as sliding-window attention in some).
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
        self._kept: dict[str, list[TokenStates]] = {}

    def states(self, sequences: Sequence[list[int]], as_trees: bool = False) -> FrozenStates | None:
        """Return the states of sequences of token ids, or None if they exceed ``MEMORY_LIMIT``.

        Args:
            sequences: token ids.
            as_trees: compute and keep a shared beginning once; the decoder must support it.
        """
        weight = self._lower.embed_tokens.weight
        tokens = tree_tokens(sequences) if as_trees else sum(map(len, sequences))
        if tokens * weight.shape[1] * weight.element_size() > MEMORY_LIMIT:
            return None
        key = hash_parts([str(as_trees), *(",".join(map(str, ids)) for ids in sequences)])
        return self._kept_or(key, lambda: self._compute(sequences, as_trees))

    def row_states(self, tree: PackedTree) -> Tensor:
        """Return the states of a packed row of T tokens, ``(1, T, H)``."""
        return self._kept_or(tree.key, lambda: [TokenStates(self.compute_row(tree)[0], tree.last)])[0].block[None]

    def _kept_or(self, key: str, compute: Callable[[], list[TokenStates]]) -> list[TokenStates]:
        # Removed and added again: the order of the keys is the order of use.
        states = self._kept.pop(key) if key in self._kept else compute()
        self._kept[key] = states
        while sum(kept[0].block.nbytes for kept in self._kept.values() if kept) > SETS_LIMIT:
            del self._kept[next(iter(self._kept))]
        return states

    @torch.inference_mode(False)
    @torch.no_grad()
    def _compute(self, sequences: Sequence[list[int]], as_trees: bool) -> list[TokenStates]:
        """Compute all states in one block: thousands of small ones would keep memory between them from being freed."""
        weight = self._lower.embed_tokens.weight
        budget = default_token_budget(weight.device)
        plan = plan_trees(sequences, budget) if as_trees else plan_batches([len(ids) for ids in sequences], budget)
        batches = [[sequences[index] for index in batch] for batch in plan]
        trees = [build_tree(batch) for batch in batches] if as_trees else []
        tokens = sum(len(tree.ids) for tree in trees) if as_trees else sum(map(len, sequences))
        block = torch.empty(tokens, weight.shape[1], dtype=weight.dtype, device=weight.device)
        found: dict[int, TokenStates] = {}
        begin = 0
        for number, (indices, members) in enumerate(zip(plan, batches, strict=True)):
            if as_trees:
                tree = trees[number]
                states = run_tree(self._lower, pack(tree, weight.device, weight.dtype))[0, : len(tree.ids)]
                own = arrays_to_device(places(tree), weight.device)
            else:
                hidden = self._lower(input_ids=pad_ids(members, weight.device), use_cache=False).last_hidden_state
                lengths = [len(ids) for ids in members]
                states = torch.cat([hidden[row, :length] for row, length in enumerate(lengths)])
                own = list(torch.split(torch.arange(len(states), device=weight.device), lengths))
            block[begin : begin + len(states)] = states
            found |= {index: TokenStates(block, rows + begin) for index, rows in zip(indices, own, strict=True)}
            begin += len(states)
        return [found[index] for index in range(len(sequences))]

    @torch.inference_mode(False)
    @torch.no_grad()
    def compute_row(self, tree: PackedTree) -> Tensor:
        """Return the states of a packed row without keeping them, ``(1, T, H)``."""
        hidden: Tensor = run_tree(self._lower, tree)
        return hidden
