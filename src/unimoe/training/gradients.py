"""The batches of an arm, and the gradient of a step: of its ranking batch, its embedding batch, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unimoe.config import Experiment
from unimoe.config.training import ArmConfig
from unimoe.core.io import append_jsonl
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.aggregation import Surgery, Task, make_aggregation
from unimoe.training.conflicts import FlatGradients, TaskBatch, conflict_records, is_additive
from unimoe.training.examples import (
    EMBEDDING_STREAM,
    RANKING_STREAM,
    EmbeddingSet,
    RankingSet,
    TrainingData,
    batch_order,
)
from unimoe.training.losses.listwise import refuse_binary
from unimoe.training.steps import Budget, Texts, embedding_backward, ranking_backward


@dataclass(frozen=True)
class RankingBatches:
    """The ranking examples of an arm, their sequences, and the groups that each step sees."""

    data: RankingSet
    texts: Texts
    steps: Sequence[Sequence[int]]


@dataclass(frozen=True)
class EmbeddingBatches:
    """The embedding examples of an arm, their queries and documents, and the groups that each step sees."""

    data: EmbeddingSet
    queries: Texts
    documents: Texts
    steps: Sequence[Sequence[int]]


def ranking_batches(experiment: Experiment, seed: int, data: TrainingData, model: UnimodelForExp1) -> RankingBatches:
    """Return the ranking batches of a training, the same for every arm that ranks."""
    examples = data.ranking(model)
    recipe = experiment.training.ranking
    order = _steps(experiment, len(examples.batched), recipe.queries_per_step // recipe.group, seed, RANKING_STREAM)
    queries = [[query for group in step for query in examples.batched[group]] for step in order]
    return RankingBatches(examples, _texts(model, examples.sequences), queries)


def embedding_batches(
    experiment: Experiment, seed: int, data: TrainingData, model: UnimodelForExp1
) -> EmbeddingBatches:
    """Return the embedding batches of a training, the same for every arm that embeds."""
    examples = data.embedding(model)
    per_step = experiment.training.embedding.pairs_per_step
    order = _steps(experiment, len(examples.groups), per_step, seed, EMBEDDING_STREAM)
    return EmbeddingBatches(examples, _texts(model, examples.queries), _texts(model, examples.documents), order)


class StepLosses(NamedTuple):
    """The unweighted losses of one step by task, the weights of the tasks, and the tokens seen."""

    losses: Mapping[Task, float]
    weights: Mapping[Task, float]
    tokens: int

    @property
    def total(self) -> float:
        """The loss of the step."""
        return sum(self.weights[task] * value for task, value in self.losses.items())


class ArmGradients:
    """Adds the gradients of an arm to its model in training.

    ``weights`` are the trainable parameters by name. An arm that does not rank, or embed, has None for these batches.
    ``aggregation`` says how the losses are weighted; a joint arm's learns.
    """

    def __init__(
        self,
        experiment: Experiment,
        arm: ArmConfig,
        model: UnimodelForExp1,
        weights: Mapping[str, nn.Parameter],
        ranking: RankingBatches | None,
        embedding: EmbeddingBatches | None,
        conflict_log: Path,
        budget: Budget,
    ) -> None:
        self._experiment, self._model, self._budget = experiment, model, budget
        self._ranking, self._embedding, self._flat = ranking, embedding, FlatGradients(weights, budget.processes)
        given: dict[Task, RankingBatches | EmbeddingBatches | None] = {"ranking": ranking, "embedding": embedding}
        self._batches = {task: batches for task, batches in given.items() if batches is not None}
        self._loss = arm.ranking_loss(experiment.training.ranking)
        if ranking:
            refuse_binary(self._loss.name, (label for labels in ranking.data.labels for label in labels))
        self.aggregation, self._conflict_log = make_aggregation(arm), conflict_log

    def add(self, step: int) -> StepLosses:
        """Add the gradient of a step, counted from 0, summed over all processes.

        If a loss is not finite, do not use the gradients.
        """
        flat, conflicts = self._flat, self._experiment.training.conflicts
        surgery = self.aggregation if isinstance(self.aggregation, Surgery) else None
        measured = conflicts.measure and step % conflicts.interval == 0
        ranking: Tensor | None = None  # that of a joint arm, where the step needs it alone
        losses: dict[Task, float] = {}
        weights, tokens = self.aggregation.weights, 0
        for task, batches in self._batches.items():
            losses[task], seen = self._backward(batches.steps[step], task, weights[task], step)
            tokens += seen
            if task == "ranking" and len(self._batches) == 2 and (measured or surgery):
                ranking = flat.take()
                if surgery:
                    flat.clear()
        found = StepLosses(losses, weights, tokens)
        if ranking is None or not math.isfinite(found.total):
            flat.sum_up()
            return found
        embedding = flat.take() if surgery else flat.take() - ranking
        ranking, embedding = flat.total(ranking), flat.total(embedding)
        if surgery:
            flat.put(combined(surgery, flat, ranking, embedding))
        else:
            flat.sum_up()
        if measured:
            unweighted: dict[Task, Tensor] = {
                "ranking": ranking.div_(weights["ranking"]),
                "embedding": embedding.div_(weights["embedding"]),
            }
            self._log_conflicts(step, unweighted)
        return found

    def query_ids(self, step: int, tasks: Sequence[Task]) -> list[str]:
        """Return the ids of the queries in a step's batches of some tasks, each once."""
        chosen = [self._batches[task] for task in tasks]
        return list(dict.fromkeys(batches.data.query_ids[row] for batches in chosen for row in batches.steps[step]))

    def _backward(self, rows: Sequence[int], task: Task, weight: float, step: int) -> tuple[float, int]:
        """Add the gradient of a task's weighted loss over some rows; return the unweighted loss and the tokens seen."""
        training, model, ranking, embedding = self._experiment.training, self._model, self._ranking, self._embedding
        if ranking and task == "ranking":
            progress = step / max(1, training.steps - 1)
            return ranking_backward(
                model, ranking.data, ranking.texts, rows, weight, self._loss, self._budget, progress=progress
            )
        assert embedding is not None  # noqa: S101 - for the type checker: an arm has batches of its tasks
        recipe = training.embedding
        return embedding_backward(
            model, embedding.data, embedding.queries, embedding.documents, rows, weight, recipe.temperature,
            self._budget, recipe.pairs_per_step,
        )  # fmt: skip

    def _log_conflicts(self, step: int, gradients: Mapping[Task, Tensor]) -> None:
        """Log how well the tasks' unweighted gradients agree."""
        assert self._ranking is not None  # noqa: S101 - for the type checker: the arm is joint
        lengths = (len(self._ranking.data.groups[row]) for row in self._ranking.steps[step])
        additive = is_additive(self._loss, self._experiment.lora.dropout, lengths)
        batches = {
            task: TaskBatch(
                batches.steps[step],
                partial(self._backward, task=task, weight=1.0, step=step),
                additive=additive and task == "ranking",
            )
            for task, batches in self._batches.items()
        }
        for record in conflict_records(self._flat, gradients, batches):
            if self._budget.processes.leads:
                append_jsonl(self._conflict_log, {"step": step + 1, **record})


def combined(surgery: Surgery, flat: FlatGradients, ranking: Tensor, embedding: Tensor) -> Tensor:
    """Return the gradient that surgery makes of those of the two tasks, as a whole or matrix by matrix."""
    pairs = [(ranking, embedding)]
    if surgery.by_matrix:
        pairs = [*zip(flat.matrices(ranking), flat.matrices(embedding), strict=True)]
    parts = []
    for one, other in pairs:
        first, second = one.double(), other.double()
        products = torch.stack([first @ first, first @ second, first @ second, second @ second])
        shares = surgery.coefficients(products.view(2, 2))
        parts.append(shares[0] * one + shares[1] * other)
    return torch.cat(parts)


def _steps(experiment: Experiment, examples: int, per_batch: int, seed: int, stream: int) -> list[list[int]]:
    """Return the rows of each step: its batches, one after the other."""
    training = experiment.training
    size = training.accumulation_steps
    batches = batch_order(examples, per_batch, training.steps * size, seed, stream)
    return [[*chain.from_iterable(batches[at : at + size])] for at in range(0, len(batches), size)]


def _texts(model: UnimodelForExp1, sequences: list[list[int]]) -> Texts:
    return Texts(sequences, model.kept_states(sequences))
