"""One causal language model as reranker and encoder: the model of the interference experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from unimoe.config import Batches, PromptConfig
from unimoe.models.adapter import adapted_model, output_layer
from unimoe.models.base import (
    BaseModel,
    decoder_of,
    logit_changes,
    refuse_beyond_positions,
    refuse_dependent_states,
)
from unimoe.models.batched import BatchedDecoder
from unimoe.models.batching import gather
from unimoe.models.device import margin_of
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.frozen_layers import FrozenLayers, split_decoder
from unimoe.models.prompts import PairTokenizer, TextTokenizer, answer_ids, own_answers, prompt_name
from unimoe.models.token_ids import embedding_rows


class UnimodelForExp1(nn.Module, Embedder):
    """Encodes texts and reranks query-document pairs with the same weights.

    Embeddings are the last token's final state, L2-normalised. A pair's score is its margin, the logit of ``yes`` minus
    that of ``no`` after the prompt: the float32 product of the last final state with the difference of two rows of the
    output matrix, which avoids the ``(N, L, vocabulary)`` logits and the ties of low precision. With a single answer in
    ``prompt.answers`` the margin is its logit.

    Args:
        base: the base model, with or without adapters, or wrapped by PEFT.
        prompt: how texts become token ids.
        max_length: tokens of one sequence, prompt included.
        first_layer: the lowest layer with adapters.
        frozen_layers: the layers below it, shared with other models; made if not given.
        varlen: attend by one kernel for variable lengths, where a GPU computes in a half dtype.
    """

    _answers: Tensor
    _biases: Tensor

    def __init__(
        self,
        base: BaseModel,
        prompt: PromptConfig,
        max_length: int,
        first_layer: int = 0,
        frozen_layers: FrozenLayers | None = None,
        *,
        varlen: bool = False,
    ) -> None:
        super().__init__()
        model = self.model = adapted_model(base.model)
        self.tokenizer, self.base_identity = base.tokenizer, base.identity
        self.prompt_name = prompt_name(prompt, max_length)
        rows = embedding_rows(model)
        self.pair_ids = PairTokenizer(base.tokenizer, prompt, max_length, rows)
        self.text_ids = TextTokenizer(base.tokenizer, prompt, max_length, rows)
        self.frozen_layers, upper = frozen_layers, None
        if first_layer > 0:
            lower, upper = split_decoder(decoder_of(model), first_layer)
            self.frozen_layers = frozen_layers or FrozenLayers(lower)
        refuse_dependent_states(model.config, max_length)
        refuse_beyond_positions(model, max_length)
        self._batched = BatchedDecoder(model, self.frozen_layers, upper, max_length, varlen=varlen)
        # Training plans its own batches, and asks for the states of each.
        self.plan_training, self.training_tokens = self._batched.plan_training, self._batched.training_tokens
        self.kept_states, self.last_states = self._batched.kept_states, self._batched.training_states
        answers = answer_ids(base.tokenizer, own_answers(prompt))
        head = output_layer(model)
        factor, self._cap = logit_changes(model.config)
        bias = getattr(head, "bias", None)
        rows = factor * head.weight[answers].detach().float()
        biases = rows.new_zeros(len(answers)) if bias is None else factor * bias[answers].detach().float()
        self.register_buffer("_answers", rows, persistent=False)
        self.register_buffer("_biases", biases, persistent=False)

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self._batched.fitting.reduced

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._answers.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the decoder; scores and embeddings are float32."""
        dtype: torch.dtype = self.model.get_output_embeddings().weight.dtype
        return dtype

    def margins(self, states: Tensor) -> Tensor:
        """Return the logit of ``yes`` minus that of ``no``, float32 ``(N,)``, for last-token states ``(N, H)``."""
        if self._cap is None:  # the difference of the rows loses no digits to that of two large logits
            return states.float() @ margin_of(self._answers.T) + margin_of(self._biases)
        logits = self._cap * torch.tanh(nn.functional.linear(states.float(), self._answers, self._biases) / self._cap)
        return margin_of(logits)

    def embeddings(self, states: Tensor) -> Tensor:
        """Return L2-normalised float32 embeddings ``(N, H)`` for last-token states ``(N, H)``."""
        return nn.functional.normalize(states.float(), dim=-1)

    def rerank(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        output: Literal["probability", "margin"] = "probability",
        instruction: str | None = None,
        advance: Advance | None = None,
        **batches: Unpack[Batches],
    ) -> Vectors:
        """Score ``(query, document)`` pairs by the yes/no judgement: ``(N,)`` float32, in their order.

        Args:
            pairs: N pairs of texts.
            output: P(yes) in [0, 1], or the margin (``"margin"``), which orders pairs even where P(yes) rounds to 1.
            instruction: replaces the prompt's.
            advance: called with the number of pairs done, after each batch.
            batches: ``token_budget``, by default what suits the device, or ``batch_size`` of one forward pass.

        Raises:
            InputError: a score is not finite.
        """
        margins = self.rerank_ids(self.pair_ids(pairs, instruction), advance=advance, **batches)
        return margins if output == "margin" else torch.sigmoid(torch.from_numpy(margins)).numpy()

    def rerank_ids(
        self, sequences: Sequence[list[int]], *, advance: Advance | None = None, **batches: Unpack[Batches]
    ) -> Vectors:
        """Return the margins of prompts given as token ids, ``(N,)``; other arguments and errors as in ``rerank``.

        Prompts that begin alike are scored together, and their beginning once.
        """
        return self._run(sequences, self.margins, (), advance, **batches)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        advance: Advance | None = None,
        **batches: Unpack[Batches],
    ) -> Vectors:
        """Embed texts; see ``Embedder``."""
        sequences = self.text_ids(texts, kind, prefix, max_length)
        vectors = self._run(sequences, self.embeddings, (self._answers.shape[1],), advance, **batches)
        refuse_zero_vectors(vectors)
        return vectors

    @torch.inference_mode()
    def _run(
        self,
        sequences: Sequence[list[int]],
        head: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        advance: Advance | None,
        token_budget: int | None = None,
        batch_size: int | None = None,
    ) -> Vectors:
        """Return ``head`` of every sequence's last state, of a shape, in the order given, without dropout."""

        def spoils(index: int) -> bool:
            return not bool(self._batched.padded_states([sequences[index]]).isfinite().all())

        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            states = self._batched.states(sequences, token_budget, batch_size)
            values = ((batch, head(found)) for batch, found in states)
            reason = "the score is not finite; try model.dtype float32, or another checkpoint"
            vectors: Vectors = gather((len(sequences), *shape), values, reason, advance, spoils).numpy()
        finally:
            for module in training:
                module.training = True
        return vectors
