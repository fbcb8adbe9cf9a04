"""The protocol of models that score pairs given as token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import torch

from unimoe.models.embedder import Advance, Vectors

TextPair = tuple[str, str]
"""Query and document, as texts."""


class PairIds(Protocol):
    """Turns pairs into the token ids of one sequence each."""

    order: Literal["query_first", "document_first"]
    suffix: list[int]  # the tokens after both
    room: int  # the tokens before the suffix, at most

    def __call__(self, pairs: Sequence[TextPair], instruction: str | None = None) -> list[list[int]]:
        """Return the token ids of each pair; a model without instructions does not read ``instruction``."""

    def too_long(self, queries: Iterable[str], instruction: str | None = None) -> list[bool]:
        """Return whether each query leaves no room for a document."""


class PairModel(Protocol):
    """Scores pairs; the larger the score, the more relevant the document."""

    base_identity: str  # logical id and content hash of the weights, ``id@hash``
    prompt_name: str  # name and content hash of all settings that change a pair's tokens or score

    @property
    def pair_ids(self) -> PairIds:
        """What makes the token ids that it scores."""

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation; scores are float32."""

    def rerank_ids(
        self,
        sequences: Sequence[list[int]],
        *,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Score N pairs given as token ids: ``(N,)`` float32, in their order; other arguments as in ``Embedder``.

        Raises:
            InputError: a score is not finite; carries the pair's index.
        """
