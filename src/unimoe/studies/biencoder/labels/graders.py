"""Grades pairs by any reranker that ``evaluate --model`` takes."""

from __future__ import annotations

import secrets
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.reranking.rerankers import reranker_of, returns_logits
from unimoe.evaluation.reranking.shards import ShardStore, rerank_run
from unimoe.evaluation.systems.named import (
    CROSS_ENCODER,
    OPTION,
    Naming,
    default_experiment,
    is_checkpoint,
    named_system,
)
from unimoe.evaluation.systems.system import System, checkpoint_loader, trained_system
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.loader import weights_hash
from unimoe.studies.biencoder.config import LabelConfig


def load_grader(config: LabelConfig, device: torch.device, engine: Engine) -> Grader:
    """Return the grader that a config names, which reranks; its model is loaded when it is needed."""
    system = _system(config, device, engine)
    if "reranking" not in system.tasks:
        raise UsageError(f"{OPTION} {config.reranker}: embeds and does not rerank; name a reranker")
    return Grader(system, engine)


class Grader:
    """Estimates the relevance of pairs of texts.

    The scores of a reranker of unimoe's families are logits; others return probabilities.

    Attributes:
        identity: content hash of everything that the estimates depend on besides the texts; another for each grader
            where nothing tells the model from every other, so that none of its estimates is used again.
    """

    def __init__(self, system: System, engine: Engine) -> None:
        self._system, self._engine = system, engine
        checkpoint = system.checkpoint
        adapter = weights_hash(checkpoint, checkpoint.experiment.evaluation) if checkpoint else None
        known = [system.base_identity, system.prompt, f"torch.{system.dtype}", adapter]
        self.identity = hash_json(known if system.reusable else [*known, secrets.token_hex()])

    def probabilities(self, collection: Collection, candidates: Run, store: ShardStore | None = None) -> Run:
        """Return P(relevant) of the candidates of a collection's queries; the store keeps finished shards.

        Raises:
            DataError: a pair cannot be scored, or its score is no probability; names query and document.
        """
        run, _ = rerank_run(reranker_of(self._model), collection, candidates, store=store)
        return {query_id: self._estimates(query_id, scores) for query_id, scores in run.items()}

    @cached_property
    def _model(self) -> Any:
        return self._engine.model(self._system, f"label by {self._system.name}", self.identity)

    def _estimates(self, query_id: str, scores: dict[str, float]) -> dict[str, float]:
        if returns_logits(self._model):
            values = torch.tensor(list(scores.values()), dtype=torch.float32).sigmoid().tolist()
            return dict(zip(scores, values, strict=True))
        for document_id, score in scores.items():
            if not 0 <= score <= 1:
                raise DataError(
                    f"query {query_id!r}, document {document_id!r}: {self._system.name} returned {score:g}; "
                    "return P(relevant), from 0 to 1"
                )
        return scores


def _system(config: LabelConfig, device: torch.device, engine: Engine) -> System:
    name = config.reranker
    if is_checkpoint(name):
        checkpoint = read_checkpoint(Path(name))
        experiment = checkpoint.experiment
        return trained_system(experiment, checkpoint_loader(experiment, checkpoint, device), Path(name))
    experiment = default_experiment(name)
    model = experiment.model.model_copy(update={"max_length": config.max_length})
    model.model_fields_set.discard("max_length")  # that of pairs: an encoder, which grades none, has its own
    experiment = experiment.model_copy(update={"model": model, "prompt": config.prompt})
    # Cross-encoders are small, and their grades stay the same on every machine.
    dtype = torch.float32 if name.startswith(f"{CROSS_ENCODER}:") else engine.dtype(device, model.dtype)
    return named_system(name, Naming(experiment, device, dtype))
