"""Models in jina-reranker-v3's layout: one pass over a whole list, by the model's own code (Wang et al. 2025).

The prompt holds the query and all documents, each followed by a special token, and a document's score is the cosine of
its token's projected state with the query's. That is what the model's own ``rerank(query, documents)`` does, cutting
lists that are longer than the model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from unimoe.core.errors import DataError, InputError
from unimoe.models.embedder import Advance
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.identity import settings_hash
from unimoe.models.kinds import LISTWISE
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.model_files import load_pretrained, loading
from unimoe.models.named import OPTION, ModelSettings
from unimoe.models.own_code import ELSEWHERE, TRUST
from unimoe.models.prompts import well_formed
from unimoe.models.reranker import Cut, Reranker, TextPair


class ListScorer(Reranker):
    """Scores the list of each query by a model's own ``rerank``, which returns rows of ``index, relevance_score``."""

    reads_order = True

    def __init__(self, model: Any) -> None:
        self._model, self.place = model, model.device

    @property
    def cut_by(self) -> Cut:
        """One query a shard, in the first stage's order."""
        return "ranked", 0

    def prepare(self, pairs: Sequence[TextPair]) -> list[TextPair]:
        """Return the texts of pairs."""
        return [(well_formed(query), well_formed(document)) for query, document in pairs]

    @torch.inference_mode()
    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the model's score of each document in its query's list."""
        scores: list[float] = []
        for query, group in groupby(prepared, itemgetter(0)):
            documents = [document for _, document in group]
            rows = self._model.rerank(query, documents)
            try:
                found = {int(row["index"]): float(row["relevance_score"]) for row in rows}
            except (TypeError, KeyError, ValueError):
                found = {}
            if found.keys() != set(range(len(documents))):
                raise InputError(len(scores), "the model's own rerank() does not return a score for each document")
            scores += [found[place] for place in range(len(documents))]
            if advance:
                advance(len(documents))
        return scores


def scores_lists(folder: ModelFolder) -> bool:
    """Return whether a folder holds a model that scores lists by code of its own."""
    return folder.architecture.endswith("ForRanking")


def list_scores_model(found: ModelFolder, settings: ModelSettings) -> Model:
    """Return a model that scores lists by its own code, which must be trusted."""
    config, architecture = settings.experiment.model, found.architecture
    if not config.trust_remote_code:
        what = "a class that transformers does not have, so that its own code would be needed"
        raise DataError(f"{found.name}: a {architecture}, {what}; {TRUST}, or {ELSEWHERE}")
    folder = find_folder(OPTION, found.name, config.revision, trust_remote_code=True)

    def load() -> Reranker:
        from transformers import AutoModel

        with loading(f"{folder.name}: cannot be loaded as a {architecture}", "check that its files are whole"):
            _, model, missing = load_pretrained(AutoModel, folder, settings.dtype)
        if missing:
            raise DataError(f"{folder.name}: no weights for {missing[0]}; give a model that was saved whole")
        if not callable(getattr(model, "rerank", None)):
            raise DataError(f"{folder.name}: its own code has no rerank(query, documents); {ELSEWHERE}")
        return ListScorer(model.requires_grad_(False).eval().to(settings.device))

    return model_of_reranker(
        load,
        identity=f"{LISTWISE}:{folder.identity}",
        prompt=f"own@{settings_hash(folder.root)}",
        dtype=settings.dtype_name,
        name=f"{found.name}.{LISTWISE}",
        reads_order=True,
        said="scores a whole list by its own rerank()",
    )
