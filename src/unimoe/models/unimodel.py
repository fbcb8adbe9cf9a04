"""One causal language model as reranker and encoder: the model of the interference experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.config import PromptConfig
from unimoe.errors import DataError
from unimoe.models.base import BaseModel
from unimoe.models.batching import default_token_budget, last_tokens, pad_ids, pad_states, plan_batches
from unimoe.models.prompts import PairEncoder, TextEncoder, TextKind, prompt_name, yes_no_ids
from unimoe.models.trunk import FrozenStates, Trunk, split_decoder

Advance = Callable[[int], None]
Vectors = NDArray[np.float32]


class UnimodelForExp1(nn.Module):
    """Encodes texts and reranks query-document pairs with the same weights.

    Embeddings are the last token's final state, L2-normalised. A pair's score is the gap between the logits of ``yes``
    and ``no`` after the prompt: the product in float32 of the last final state with the difference of two rows of the
    output matrix, so that the ``(N, L, vocabulary)`` logits are never built and low-precision ties never arise.

    Args:
        base: the base model, with adapters or without.
        prompt: how texts become token ids.
        max_length: tokens of one sequence, prompt included.
        first_layer: the lowest layer that adapters change; the layers below are shared through ``trunk``.
        trunk: the shared lower layers; made when absent and ``first_layer`` is above 0.
    """

    _yes_minus_no: Tensor

    def __init__(
        self,
        base: BaseModel,
        prompt: PromptConfig,
        max_length: int,
        first_layer: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__()
        self.base_identity = base.identity
        self.prompt_name = prompt_name(prompt, max_length)
        self.tokenizer = base.tokenizer
        self.pair_ids = PairEncoder(base.tokenizer, prompt, max_length)
        self.text_ids = TextEncoder(base.tokenizer, prompt, max_length)
        self.model = base.model
        self.trunk = trunk
        self._upper = None
        if first_layer > 0:
            lower, self._upper = split_decoder(self._decoder(), first_layer)
            self.trunk = trunk or Trunk(lower)
        yes, no = yes_no_ids(base.tokenizer)
        head = base.model.get_output_embeddings()
        self.register_buffer("_yes_minus_no", _row(head.weight, yes) - _row(head.weight, no), persistent=False)
        bias = getattr(head, "bias", None)
        self._bias_gap = 0.0 if bias is None else float(bias[yes] - bias[no])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._yes_minus_no.device

    @property
    def dtype(self) -> torch.dtype:
        """What the decoder computes in; scores and embeddings are float32."""
        dtype: torch.dtype = self.model.get_output_embeddings().weight.dtype
        return dtype

    def last_states(self, sequences: Sequence[Sequence[int]], frozen: FrozenStates | None = None) -> Tensor:
        """The final state of each sequence's last token, in one forward pass; gradients flow if enabled.

        Args:
            sequences: token ids of N sequences.
            frozen: their states below the first adapted layer, where they are known.

        Returns:
            ``(N, H)`` in the decoder's dtype.
        """
        if frozen is not None and self._upper is not None:
            output = self._upper(inputs_embeds=pad_states(frozen), use_cache=False)
        else:
            output = self._decoder()(input_ids=pad_ids(sequences, self.device), use_cache=False)
        return last_tokens(output.last_hidden_state, [len(ids) for ids in sequences])

    def gaps(self, states: Tensor) -> Tensor:
        """Logit of ``yes`` minus logit of ``no`` for last-token states ``(N, H)``; float32, shape ``(N,)``."""
        return states.float() @ self._yes_minus_no + self._bias_gap

    def embeddings(self, states: Tensor) -> Tensor:
        """L2-normalised float32 embeddings ``(N, H)`` from last-token states ``(N, H)``."""
        return nn.functional.normalize(states.float(), dim=-1)

    def rerank(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        output: Literal["probability", "gap"] = "probability",
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Score ``(query, document)`` pairs by the yes/no judgement.

        Args:
            pairs: N pairs of texts.
            output: P(yes) in [0, 1], or the logit gap, which orders pairs that P(yes) rounds to 1.
            token_budget: padded tokens of one forward pass; by default what suits the device.
            batch_size: pairs of one forward pass, instead of the budget.
            advance: called with the number of pairs done, after each batch.

        Returns:
            ``(N,)`` float32, in the order of ``pairs``.

        Raises:
            DataError: a query fills the whole length, or a score is not finite.
        """
        gaps = self._run(self.pair_ids(pairs), self.gaps, token_budget, batch_size, advance)
        scores = gaps if output == "gap" else torch.sigmoid(gaps)
        return scores.numpy()

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Embed texts.

        Args:
            texts: N texts.
            kind: which configured prefix goes before them.
            prefix: a prefix that takes the place of the configured one.
            token_budget: padded tokens of one forward pass; by default what suits the device.
            batch_size: texts of one forward pass, instead of the budget.
            advance: called with the number of texts done, after each batch.

        Returns:
            ``(N, D)`` float32 of unit length, in the order of ``texts``.

        Raises:
            DataError: an embedding is not finite.
        """
        sequences = self.text_ids(texts, kind, prefix)
        return self._run(sequences, self.embeddings, token_budget, batch_size, advance).numpy()

    @torch.inference_mode()
    def _run(
        self,
        sequences: Sequence[list[int]],
        head: Callable[[Tensor], Tensor],
        token_budget: int | None,
        batch_size: int | None,
        advance: Advance | None,
    ) -> Tensor:
        """``head`` of every sequence's last state, in batches of similar length, in the order given."""
        outputs: dict[int, Tensor] = {}
        budget = token_budget or default_token_budget(self.device)
        with _without_dropout(self):
            frozen = self.trunk.states(sequences) if self.trunk else None
            for batch in plan_batches([len(ids) for ids in sequences], budget, batch_size):
                states = self.last_states(
                    [sequences[index] for index in batch], [frozen[index] for index in batch] if frozen else None
                )
                values = head(states).cpu()
                outputs.update(zip(batch, values, strict=True))
                if advance:
                    advance(len(batch))
        if not outputs:
            return head(self._yes_minus_no.new_empty(0, len(self._yes_minus_no))).cpu()
        stacked = torch.stack([outputs[index] for index in range(len(sequences))])
        _refuse_non_finite(stacked)
        return stacked

    def _decoder(self) -> Any:
        return self.model.model


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Eval mode for the modules in training mode, while the block runs: a model in training can be scored."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _row(matrix: Tensor, index: int) -> Tensor:
    return matrix[index].detach().float()


def _refuse_non_finite(values: Tensor) -> None:
    finite = values.isfinite() if values.dim() == 1 else values.isfinite().all(dim=-1)
    if not bool(finite.all()):
        first = int(finite.logical_not().nonzero()[0])
        count = math.prod(finite.shape) - int(finite.sum())
        raise DataError(f"{count} scores are not finite, the first is input {first}; try model.dtype float32")
