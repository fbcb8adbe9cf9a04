"""Models that score pairs given as token ids: causal ones by a prompt of ours, and the families that have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unimoe.core.errors import UsageError
from unimoe.models.batching import FittingBatches, gather
from unimoe.models.embedder import Advance, Vectors
from unimoe.models.model_files import refuse_rowless
from unimoe.models.prompts import PairTokenizer
from unimoe.models.unimodel import UnimodelForExp1

TextPair = tuple[str, str]
"""Query and document, as texts."""


class QueryFirstIds:
    """Token ids of pairs without an instruction: the query, the document, and a suffix that is always whole.

    ``bodies`` returns the token ids of whole pairs, at least one, without the suffix. What is too long for
    ``max_length`` tokens loses the end of the document, then that of the query.
    """

    order: Literal["query_first", "document_first"] = "query_first"

    def __init__(
        self, bodies: Callable[[Sequence[TextPair]], list[list[int]]], max_length: int, suffix: list[int]
    ) -> None:
        self._bodies, self.suffix, self.room = bodies, suffix, max_length - len(suffix)
        if self.room < len(bodies([("", "")])[0]) + 8:
            raise UsageError(f"model.max_length {max_length} leaves no room beside the names of the fields; raise it")

    def __call__(self, pairs: Sequence[TextPair], instruction: str | None = None) -> list[list[int]]:
        """Return the token ids of each pair."""
        return [body[: self.room] + self.suffix for body in self._bodies(pairs)] if pairs else []

    def too_long(self, queries: Iterable[str], instruction: str | None = None) -> list[bool]:
        """Return whether each query leaves no room for a document."""
        pairs = [(query, "") for query in queries]
        return [len(body) >= self.room for body in self._bodies(pairs)] if pairs else []


@dataclass
class TokenReranker:
    """Scores pairs by a model of transformers in eval mode; the larger the score, the more relevant the document.

    Attributes:
        scores: yields the indices of each batch with its scores, float32 on the device.
        fitting: what the batches of ``scores`` go through.
        base_identity: logical id and content hash of the weights, ``id@hash``; None where a folder was loaded by hand.
        prompt_name: name and content hash of all settings that change a pair's tokens or score.
        rowless: added tokens that the model cannot read; see ``rowless_tokens``.
    """

    model: Any
    pair_ids: QueryFirstIds | PairTokenizer
    scores: Callable[[Sequence[list[int]], int | None, int | None], Iterator[tuple[list[int], Tensor]]]
    fitting: FittingBatches
    base_identity: str | None = None
    prompt_name: str | None = None
    rowless: Mapping[int, str] = field(default_factory=dict)

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self.fitting.reduced

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
        """Score N pairs given as token ids: ``(N,)`` float32, in their order; the rest as in ``UnimodelForExp1``."""
        refuse_rowless(sequences, self.rowless)
        scores = self.scores(sequences, token_budget, batch_size)
        reason = "the score is not finite; try model.dtype float32"
        return gather((len(sequences),), scores, reason, advance).numpy()


PairModel = UnimodelForExp1 | TokenReranker
"""What scores the token ids that its ``pair_ids`` makes of pairs of texts."""
