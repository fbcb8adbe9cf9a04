"""A dataset as a plan loads it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import islice

import torch

from unimoe.core.trec import Run
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset


class PlannedDataset(LoadedDataset):
    """A dataset for a plan, which embeds nothing: stand-ins take the place of candidates that are not cached.

    Attributes:
        texts: that the first stage has to embed; 0 where the candidates are its own.
    """

    def __init__(self, dataset: Dataset, device: torch.device | None = None) -> None:
        super().__init__(dataset, device)
        self.texts = self._stage.texts_to_embed(self._whole)
        self.hybrid = self._stage.hybrid
        if self.texts:
            self._stage = replace(self._stage, setting="bm25s")

    @cached_property
    def candidates(self) -> Run:
        """The candidates; where they are stand-ins, BM25's and any other documents, as many as a fusion will find."""
        found = super().candidates
        if not self.texts:
            return found
        others = list(islice(self._whole.corpus, self.dataset.depth + 1))
        return {query_id: self._filled(query_id, scores, others) for query_id, scores in found.items()}

    def _filled(self, query_id: str, scores: dict[str, float], others: list[str]) -> dict[str, float]:
        left_out = {query_id} if self.dataset.exclude_self else set()
        fill = {key: 0.0 for key in others if key not in scores and key not in left_out}
        return scores | dict(islice(fill.items(), self.dataset.depth - len(scores)))
