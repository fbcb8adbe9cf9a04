"""Last-token states of many sequences, in batches that compute a shared beginning once and shrink to fit memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unimoe.models.base import decoder_layers, decoder_of
from unimoe.models.batching import (
    FittingBatches,
    default_token_budget,
    if_it_fits,
    last_tokens,
    pad_ids,
    pad_states,
    padded_tokens,
    plan_padded,
)
from unimoe.models.frozen_layers import FrozenLayers, FrozenStates, tree_states
from unimoe.models.pipeline import ahead
from unimoe.models.token_tree import build_tree, plan_trees, tree_tokens
from unimoe.models.tree_attention import (
    PackedTree,
    UnsupportedAttentionError,
    last_tokens_only,
    pack,
    run_tree,
    sees_whole_text,
)

States = tuple[list[int], Tensor]
"""Indices of N sequences, and the final states ``(N, H)`` of their last tokens."""


class BatchedDecoder:
    """Runs a decoder over batches of sequences.

    Args:
        model: a causal language model of transformers.
        frozen_layers: its frozen lower layers, where ``upper`` is given.
        upper: the layers above them.
        longest: tokens of a sequence, at most; None where that is not known.

    Attributes:
        top: the decoder that gives final states: ``upper``, or all layers.
    """

    def __init__(
        self, model: Any, frozen_layers: FrozenLayers | None = None, upper: Any = None, longest: int | None = None
    ) -> None:
        self._decoder, self._frozen_layers, self._upper = decoder_of(model), frozen_layers, upper
        self._trees = supports_trees(model, longest)
        top = self._decoder if upper is None else upper
        self.top, self._drops_tokens = last_tokens_only(top) if self._trees else (top, False)
        self._fitting = FittingBatches("a sequence", "model.max_length")

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self._fitting.reduced

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._decoder.get_input_embeddings().weight.device
        return device

    @property
    def trains_trees(self) -> bool:
        """Whether sequences in training share beginnings: not with dropout of attention, nor with recomputation."""
        dropout = getattr(self._decoder.config, "attention_dropout", 0.0)
        recomputes = any(getattr(layer, "gradient_checkpointing", False) for layer in decoder_layers(self._decoder))
        return self._trees and not dropout and not recomputes

    def kept_states(self, sequences: Sequence[list[int]]) -> FrozenStates | None:
        """Return the states of training sequences below ``upper``; None if there is none, or memory is short."""
        return self._frozen_layers.states(sequences, self.trains_trees) if self._frozen_layers else None

    def plan_training(
        self, sequences: Sequence[list[int]], token_budget: int, batch_size: int | None
    ) -> list[list[int]]:
        """Group the indices of training sequences into batches for ``training_states``."""
        return (plan_trees if self.trains_trees else plan_padded)(sequences, token_budget, batch_size)

    def training_tokens(self, sequences: Sequence[list[int]]) -> int:
        """Return how many tokens ``training_states`` computes for one batch."""
        return tree_tokens(sequences) if self.trains_trees else padded_tokens(sequences)

    def training_states(self, sequences: Sequence[list[int]], frozen: FrozenStates | None) -> Tensor:
        """Return the final states ``(N, H)`` of the last tokens of one batch; gradients flow.

        Args:
            sequences: token ids of N sequences.
            frozen: their ``kept_states``.
        """
        if not self.trains_trees:
            return self.padded_states(sequences, frozen)
        tree, below = self._pack(sequences), None
        if self._frozen_layers is not None:
            below = tree_states(tree.tree, frozen) if frozen else self._frozen_layers.compute_row(tree)
        return self._top_states(tree, below)

    def padded_states(self, sequences: Sequence[Sequence[int]], frozen: FrozenStates | None = None) -> Tensor:
        """Return the final states ``(N, H)`` of one batch, padded on the right; gradients flow if enabled.

        Args:
            sequences: token ids of N sequences.
            frozen: their states below the first adapted layer, if known.
        """
        if frozen is not None and self._upper is not None:
            output = self._upper(inputs_embeds=pad_states([states.whole for states in frozen]), use_cache=False)
        else:
            output = self._decoder(input_ids=pad_ids(sequences, self.device), use_cache=False)
        return last_tokens(output.last_hidden_state, [len(ids) for ids in sequences])

    def states(
        self, sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[States]:
        """Yield the states of all sequences, batch by batch, in an order that depends on their tokens alone.

        Args:
            sequences: token ids.
            token_budget: tokens of a batch; by default what suits the device.
            batch_size: sequences of a batch, instead of the budget.

        Raises:
            DataError: a batch of one sequence does not fit in memory.
        """
        budget = token_budget or default_token_budget(self.device)
        run = partial(self._fitting.run, sequences, budget=budget, batch_size=batch_size)
        below = self._frozen_layers
        if not self._trees:
            frozen = if_it_fits(partial(below.states, sequences)) if below else None

            def padded(batch: list[int], _: None) -> Tensor:
                members = [sequences[index] for index in batch]
                return self.padded_states(members, [frozen[index] for index in batch] if frozen else None)

            return run(padded)

        def packed(batch: list[int]) -> PackedTree:
            return self._pack([sequences[index] for index in batch])

        def of_tree(batch: list[int], tree: PackedTree | None) -> Tensor:
            tree = tree or packed(batch)
            return self._top_states(tree, below.row_states(tree) if below else None)

        def prepare(batches: Sequence[list[int]]) -> Iterable[PackedTree | None]:
            def attempt(batch: list[int]) -> PackedTree | None:
                # What does not fit may do so when the batch before is done.
                return if_it_fits(partial(packed, batch))

            return ahead(attempt, batches) if _packs_ahead(self.device) else map(attempt, batches)

        return run(of_tree, plan=plan_trees, tokens=tree_tokens, prepare=prepare)

    def _pack(self, sequences: Sequence[list[int]]) -> PackedTree:
        return pack(build_tree(sequences), self.device, self._decoder.get_input_embeddings().weight.dtype)

    def _top_states(self, tree: PackedTree, below: Tensor | None) -> Tensor:
        """Return the last tokens' final states, from the states below ``upper`` if it is given."""
        states = run_tree(self.top, tree, below)[0]
        return states if self._drops_tokens else states[tree.last]


def _packs_ahead(device: torch.device) -> bool:
    """Return whether batches are built in a thread: a CPU would have to share its cores with it."""
    return device.type != "cpu"


def supports_trees(model: Any, longest: int | None = None) -> bool:
    """Return whether all layers attend to all earlier tokens and let another function compute the attention.

    Sequences have ``longest`` tokens at most. Where the configuration does not tell, running one token through the
    decoder does.
    """
    decoder = decoder_of(model)
    if not sees_whole_text(model.config, longest) or not getattr(model, "_supports_attention_backend", False):
        return False
    weight = decoder.get_input_embeddings().weight
    try:
        with torch.no_grad():
            run_tree(decoder, pack(build_tree([[0]]), weight.device, weight.dtype))
    except UnsupportedAttentionError:
        return False
    return True
