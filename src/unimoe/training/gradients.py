"""The batches of an arm, and the gradient of a step: of its ranking batch, its embedding batch, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config import Experiment
from unimoe.config.training import ArmConfig, ArmTask, TrainingConfig
from unimoe.core.io import append_jsonl
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.aggregation import Surgery, TrainingTask, make_aggregation
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
from unimoe.training.steps import Budget, embedding_backward, ranking_backward


class TaskBatches(NamedTuple):
    """The examples of one of an arm's tasks, and the groups of them that each step sees."""

    data: RankingSet | EmbeddingSet
    steps: Sequence[Sequence[int]]


def arm_batches(
    experiment: Experiment, task: ArmTask, seed: int, data: TrainingData, model: UnimodelForExp1
) -> dict[TrainingTask, TaskBatches]:
    """Return the batches of each task that an arm is trained for; they are the same for every such arm."""
    training, found = experiment.training, dict[TrainingTask, TaskBatches]()
    if task != "emb_only":
        ranking, group = data.ranking(model), training.ranking.group
        order = _steps(training, len(ranking.batched), training.ranking.queries_per_step // group, seed, RANKING_STREAM)
        queries = [[query for place in step for query in ranking.batched[place]] for step in order]
        found["ranking"] = TaskBatches(ranking, queries)
    if task != "rank_only":
        embedding, pairs = data.embedding(model), training.embedding.pairs_per_step
        order = _steps(training, len(embedding.groups), pairs, seed, EMBEDDING_STREAM)
        found["embedding"] = TaskBatches(embedding, order)
    return found


class StepLosses(NamedTuple):
    """The unweighted losses of one step by task, the weights of the tasks, and the tokens seen."""

    losses: Mapping[TrainingTask, float]
    weights: Mapping[TrainingTask, float]
    tokens: int

    @property
    def total(self) -> float:
        """The loss of the step."""
        return sum(self.weights[task] * value for task, value in self.losses.items())


class ArmGradients:
    """Adds the gradients of an arm to its model in training.

    ``weights`` are the trainable parameters by name. ``aggregation`` says how the losses are weighted; a joint arm's
    learns.
    """

    def __init__(
        self,
        experiment: Experiment,
        arm: ArmConfig,
        model: UnimodelForExp1,
        weights: Mapping[str, nn.Parameter],
        batches: Mapping[TrainingTask, TaskBatches],
        conflict_log: Path,
        processes: Processes = ALONE,
    ) -> None:
        training = experiment.training
        self._experiment, self._model, self._batches = experiment, model, batches
        self._budget = Budget(training.token_budget, training.batch_size, processes)
        self._flat = FlatGradients(weights, processes)
        self._loss = arm.ranking_loss(training.ranking)
        for data, _ in batches.values():
            if isinstance(data, RankingSet):
                refuse_binary(self._loss, chain.from_iterable(data.labels))
        self.aggregation, self._conflict_log = make_aggregation(arm), conflict_log

    def add(self, step: int) -> StepLosses:
        """Add the gradient of a step, counted from 0, summed over all processes.

        If a loss is not finite, do not use the gradients.
        """
        flat, conflicts = self._flat, self._experiment.training.conflicts
        surgery = self.aggregation if isinstance(self.aggregation, Surgery) else None
        measured = conflicts.measure and step % conflicts.interval == 0
        ranking: Tensor | None = None  # that of a joint arm, where the step needs it alone
        losses: dict[TrainingTask, float] = {}
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
            unweighted: dict[TrainingTask, Tensor] = {
                "ranking": ranking.div_(weights["ranking"]),
                "embedding": embedding.div_(weights["embedding"]),
            }
            self._log_conflicts(step, unweighted)
        return found

    def query_ids(self, step: int, tasks: Sequence[TrainingTask]) -> list[str]:
        """Return the ids of the queries in a step's batches of some tasks, each once."""
        chosen = [self._batches[task] for task in tasks]
        return list(dict.fromkeys(batches.data.query_ids[row] for batches in chosen for row in batches.steps[step]))

    def _backward(self, rows: Sequence[int], task: TrainingTask, weight: float, step: int) -> tuple[float, int]:
        """Add the gradient of a task's weighted loss over some rows; return the unweighted loss and the tokens seen."""
        training, model, data = self._experiment.training, self._model, self._batches[task].data
        if isinstance(data, RankingSet):
            progress = step / max(1, training.steps - 1)
            return ranking_backward(model, data, rows, weight, self._loss, self._budget, progress=progress)
        temperature, contrast = training.embedding.temperature, training.embedding.pairs_per_step
        return embedding_backward(model, data, rows, weight, temperature, self._budget, contrast)

    def _log_conflicts(self, step: int, gradients: Mapping[TrainingTask, Tensor]) -> None:
        """Log how well the tasks' unweighted gradients agree."""
        ranking = self._batches["ranking"]
        lengths = (len(ranking.data.groups[row]) for row in ranking.steps[step])
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


def _steps(training: TrainingConfig, examples: int, per_batch: int, seed: int, stream: int) -> list[list[int]]:
    """Return the rows of each step: its batches, one after the other."""
    size = training.accumulation_steps
    batches = batch_order(examples, per_batch, training.steps * size, seed, stream)
    return [[*chain.from_iterable(batches[at : at + size])] for at in range(0, len(batches), size)]
