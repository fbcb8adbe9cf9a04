"""Models that score pairs given as token ids: causal ones by a prompt of ours, and the families that have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from unimoe.config import Batches
from unimoe.core.errors import UsageError
from unimoe.models.batching import FittingBatches, gather, used_budget
from unimoe.models.embedder import Advance, Vectors
from unimoe.models.prompts import PairTokenizer
from unimoe.models.reranker import Cut, Reranker, TextPair, shard_characters
from unimoe.models.token_ids import embedding_rows, refuse_tokens_without_rows
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1


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
    """

    model: Any
    pair_ids: QueryFirstIds | PairTokenizer
    scores: Callable[[Sequence[list[int]], int | None, int | None], Iterator[tuple[list[int], Tensor]]]
    fitting: FittingBatches

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
        refuse_tokens_without_rows(sequences, embedding_rows(self.model))
        scores = self.scores(sequences, token_budget, batch_size)
        reason = "the score is not finite; try model.dtype float32"
        return gather((len(sequences),), scores, reason, advance).numpy()


PairModel = UnimodelForExp1 | TokenReranker
"""What scores the token ids that its ``pair_ids`` makes of pairs of texts."""


class PairModelReranker(Reranker):
    """Scores pairs by a model of token ids, such as the margin between the logits of yes and no.

    ``instruction`` is what the prompts say, instead of the model's own; ``batches`` the size of a forward pass.
    """

    logits = True

    def __init__(self, model: PairModel, *, instruction: str | None = None, **batches: Unpack[Batches]) -> None:
        self._model, self._instruction, self._batches, self.place = model, instruction, batches, model.device

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass; see ``Reranker``."""
        return used_budget(self._model.device, self._model.reduced_budget, **self._batches)

    @property
    def cut_by(self) -> Cut:
        """Whole prefix groups: batches never cross a shard, and what prompts share is computed once."""
        return self._model.pair_ids.order, shard_characters(self._model.device)

    def prepare(self, pairs: Sequence[TextPair]) -> list[list[int]]:
        """Return the token ids of the pairs' prompts."""
        return self._model.pair_ids(pairs, self._instruction)

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document."""
        return list(compress(queries, self._model.pair_ids.too_long(queries.values(), self._instruction)))

    def tokens_of(self, shards: Sequence[Sequence[list[int]]]) -> int:
        """Return the tokens of all prompts, of what they share at their beginning once."""
        return tree_tokens([*chain.from_iterable(shards)])

    def score(self, prepared: Sequence[list[int]], advance: Advance | None = None) -> list[float]:
        """Return the score of each prompt; equal prompts are scored once, so that their scores are equal."""
        place: dict[tuple[int, ...], int] = {}
        places = [place.setdefault(tuple(ids), len(place)) for ids in prepared]
        margins = self._model.rerank_ids(list(map(list, place)), advance=advance, **self._batches)
        if advance and len(place) < len(places):
            advance(len(places) - len(place))
        scores: list[float] = margins[places].tolist()
        return scores
