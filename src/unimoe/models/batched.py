"""Last-token states of many sequences, in batches that compute a shared beginning once and shrink to fit memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unimoe.models.base import decoder_layers, decoder_of
from unimoe.models.batching import (
    FittingBatches,
    default_token_budget,
    last_tokens,
    pad_ids,
    padded_tokens,
    plan_padded,
)
from unimoe.models.frozen_layers import FrozenLayers, FrozenStates, tree_states
from unimoe.models.token_tree import build_tree, plan_trees, tree_tokens
from unimoe.models.tree_attention import last_tokens_only, pack, refuse_no_varlen, run_tree, supports_trees


class BatchedDecoder:
    """Runs the decoder of a causal language model over batches of sequences, of ``longest`` tokens at most.

    Over token trees, ``frozen_layers`` are its frozen lower layers where ``upper`` holds the layers above them. ``top``
    is then ``upper``; else the decoder of all layers. ``varlen`` asks for ``attend_by_spans`` where it can be had, half
    dtypes on a GPU.
    """

    def __init__(
        self,
        model: Any,
        frozen_layers: FrozenLayers | None = None,
        upper: Any = None,
        longest: int | None = None,
        *,
        varlen: bool = False,
    ) -> None:
        self._decoder, self._upper = decoder_of(model), upper
        self._trees = supports_trees(model, longest)
        weight = self._decoder.get_input_embeddings().weight
        self._varlen = varlen and self._trees and weight.device.type == "cuda" and weight.dtype != torch.float32
        if self._varlen:
            refuse_no_varlen(model)
        self._frozen_layers = frozen_layers if self._trees else None
        self.top, self._drops_tokens = self._decoder, False
        if self._trees:
            self.top, self._drops_tokens = last_tokens_only(self._decoder if upper is None else upper)
        plan, size = (plan_trees, tree_tokens) if self._trees else (plan_padded, padded_tokens)
        self.fitting = FittingBatches("a sequence", "model.max_length", plan=plan, size=size)

    @property
    def trains_trees(self) -> bool:
        """Whether sequences in training share beginnings: not with dropout of attention, nor with recomputation."""
        dropout = getattr(self._decoder.config, "attention_dropout", 0.0)
        recomputes = any(getattr(layer, "gradient_checkpointing", False) for layer in decoder_layers(self._decoder))
        return self._trees and not dropout and not recomputes

    def kept_states(self, sequences: Sequence[list[int]]) -> FrozenStates | None:
        """Return the states of sequences below ``upper``; None if there are none, or too many to keep."""
        return self._frozen_layers.states(sequences, varlen=self._varlen) if self._frozen_layers else None

    def plan_training(
        self, sequences: Sequence[list[int]], token_budget: int, batch_size: int | None
    ) -> list[list[int]]:
        """Group the indices of training sequences into batches for ``training_states``."""
        return (plan_trees if self.trains_trees else plan_padded)(sequences, token_budget, batch_size)

    def training_tokens(self, sequences: Sequence[list[int]]) -> int:
        """Return how many tokens ``training_states`` computes for one batch."""
        return tree_tokens(sequences) if self.trains_trees else padded_tokens(sequences)

    def training_states(self, sequences: Sequence[list[int]], frozen: FrozenStates | None = None) -> Tensor:
        """Return the final states ``(N, H)`` of one batch's last tokens, in one pass; gradients flow if enabled.

        A beginning that sequences share is computed once. ``frozen`` are the sequences' ``kept_states``.
        """
        return (self.tree_states if self.trains_trees else self.padded_states)(sequences, frozen)

    def tree_states(self, sequences: Sequence[list[int]], frozen: FrozenStates | None = None) -> Tensor:
        """Return the final states ``(N, H)`` of one batch, packed into a tree; gradients flow if enabled."""
        weight, below = self._decoder.get_input_embeddings().weight, None
        tree = pack(build_tree(sequences), weight.device, weight.dtype, varlen=self._varlen)
        if self._frozen_layers is not None:
            below = tree_states(tree, frozen) if frozen else self._frozen_layers.compute_row(tree)
        states = run_tree(self.top, tree, below)[0]
        return states if self._drops_tokens else states[tree.last]

    def padded_states(self, sequences: Sequence[list[int]], frozen: FrozenStates | None = None) -> Tensor:
        """Return the final states ``(N, H)`` of one batch, padded on the right; gradients flow if enabled."""
        if frozen is not None:
            below = pad_sequence([states.tokens() for states in frozen], batch_first=True)
            output = self._upper(inputs_embeds=below, use_cache=False)
        else:
            ids = pad_ids(sequences, self._decoder.get_input_embeddings().weight.device)
            output = self._decoder(input_ids=ids, use_cache=False)
        return last_tokens(output.last_hidden_state, [len(ids) for ids in sequences])

    def states(
        self, sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of N sequences with the final states ``(N, H)`` of their last tokens, batch by batch.

        The batches depend on the token ids alone, within so many tokens, by default what suits the device, or so many
        sequences.

        Raises:
            DataError: a batch of one sequence does not fit in memory.
        """

        def of_batch(batch: list[int]) -> Tensor:
            members = [sequences[index] for index in batch]
            return self.tree_states(members, self.kept_states(members)) if self._trees else self.padded_states(members)

        budget = token_budget or default_token_budget(self._decoder.get_input_embeddings().weight.device)
        return self.fitting.run(sequences, of_batch, budget, batch_size)
