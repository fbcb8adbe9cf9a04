"""What monoT5 and RankLLaMA share: pairs given as token ids are scored batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from unimoe.core.errors import InputError
from unimoe.models.embedder import Advance, Vectors
from unimoe.models.pair_model import PairIds
from unimoe.models.pipeline import Gathered


class TokenReranker(ABC):
    """Scores pairs given as token ids; satisfies ``PairModel``.

    Args:
        model: of transformers, in eval mode on its device.
        pair_ids: makes the token ids of pairs.
        base_identity: as results know it.
        prompt_name: name and content hash of all settings that change a pair's tokens or score.

    Attributes:
        model: as given.
    """

    def __init__(self, model: Any, pair_ids: PairIds, base_identity: str, prompt_name: str) -> None:
        self.model, self.pair_ids = model, pair_ids
        self.base_identity, self.prompt_name = base_identity, prompt_name

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return None

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
        """Score pairs given as token ids; arguments, result and errors as in ``PairModel``."""
        gathered = Gathered(len(sequences), _refuse_non_finite)
        for batch, scores in self._scores(sequences, token_budget, batch_size):
            gathered.add(batch, scores)
            if advance:
                advance(len(batch))
        found = gathered.values()
        values: Vectors = (torch.empty(0) if found is None else found).numpy()
        return values

    @abstractmethod
    def _scores(
        self, sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of each batch with its scores, float32 on the device."""


def _refuse_non_finite(batch: Sequence[int], scores: Tensor) -> NoReturn:
    first = int(scores.isfinite().logical_not().nonzero()[0])
    raise InputError(batch[first], "the score is not finite; try model.dtype float32")
