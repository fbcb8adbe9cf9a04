"""What the families of rerankers share: token ids of pairs, scores batch by batch, and heads in float32.

A model of lower precision has logits of 8 bits in bfloat16, which would tie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.models.batching import gather
from unimoe.models.embedder import Advance, Vectors
from unimoe.models.model_files import settings_hash
from unimoe.models.pair_model import PairIds, TextPair


def reading(family: str, root: Path, max_length: int, *others: Any) -> str:
    """Return name and content hash of all settings by which a folder's model reads and judges a pair."""
    return f"{family}(max_length={max_length})@{hash_json([settings_hash(root), max_length, *others])}"


class QueryFirstIds(ABC):
    """Token ids of pairs without an instruction: the query, the document, and a suffix that is always whole.

    What is too long for ``max_length`` tokens loses the end of the document, then that of the query.
    """

    order: Literal["query_first", "document_first"] = "query_first"

    def __init__(self, tokenizer: Any, max_length: int, suffix: list[int]) -> None:
        self._tokenizer, self.suffix = tokenizer, suffix
        self.room = max_length - len(suffix)
        if self.room < len(self._bodies([("", "")])[0]) + 8:
            raise UsageError(f"model.max_length {max_length} leaves no room beside the names of the fields; raise it")

    def __call__(self, pairs: Sequence[TextPair], instruction: str | None = None) -> list[list[int]]:
        """Return the token ids of each pair."""
        return [body[: self.room] + self.suffix for body in self._bodies(pairs)] if pairs else []

    def too_long(self, queries: Iterable[str], instruction: str | None = None) -> list[bool]:
        """Return whether each query leaves no room for a document."""
        pairs = [(query, "") for query in queries]
        return [len(body) >= self.room for body in self._bodies(pairs)] if pairs else []

    @abstractmethod
    def _bodies(self, pairs: Sequence[TextPair]) -> list[list[int]]:
        """Return the token ids of whole pairs without the suffix."""


class TokenReranker(ABC):
    """Scores pairs given as token ids by a model of transformers in eval mode; satisfies ``PairModel``."""

    def __init__(self, model: Any, pair_ids: PairIds, base_identity: str, prompt_name: str) -> None:
        self.model, self.pair_ids = model, pair_ids
        self.base_identity, self.prompt_name = base_identity, prompt_name

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation; scores are float32."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @torch.inference_mode()
    def rerank_ids(
        self,
        sequences: Sequence[list[int]],
        *,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Score pairs given as token ids; see ``PairModel``."""
        scores = self._scores(sequences, token_budget, batch_size)
        found = gather(len(sequences), scores, "the score is not finite; try model.dtype float32", advance)
        return np.empty(0, np.float32) if found is None else found.numpy()

    @abstractmethod
    def _scores(
        self, sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of each batch with its scores, float32 on the device."""


class AnswerHead(nn.Module):
    """Computes the float32 logits of a few tokens, in their order, as the output layer ``head`` of a model does."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Any, tokens: Sequence[int]) -> None:
        super().__init__()
        rows, bias = list(tokens), getattr(head, "bias", None)
        self.register_buffer("weight", head.weight[rows].detach().float())
        self.register_buffer("bias", None if bias is None else bias[rows].detach().float())

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``(..., N)`` of states ``(..., H)``."""
        return nn.functional.linear(states.float(), self.weight, self.bias)


def compute_in_float32(module: nn.Module) -> None:
    """Give a module float32 weights, and cast to float32 what it is called with."""
    module.float().register_forward_pre_hook(lambda _, arguments: tuple(map(_float32, arguments)))


def _float32(value: Any) -> Any:
    if isinstance(value, Mapping):  # the features that modules of sentence-transformers pass on
        return {name: _float32(feature) for name, feature in value.items()}
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
