"""The batches of an arm, and the gradient of a step: of its ranking batch, its embedding batch, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from torch import nn

from unimoe.config import Experiment
from unimoe.config.training import ArmConfig
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget
from unimoe.training.aggregation import Task, make_aggregation
from unimoe.training.conflicts import FlatGradients, JointGradients, TaskBatch, is_additive
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


def budget_seen(experiment: Experiment, steps: int, tokens: int, ranks: bool, embeds: bool) -> TrainingBudget:
    """Return what an arm has seen in its first ``steps`` steps."""
    training = experiment.training
    batches = steps * training.accumulation_steps
    return TrainingBudget(
        steps=steps,
        ranking_examples=batches * training.ranking.queries_per_step if ranks else 0,
        embedding_examples=batches * training.embedding.pairs_per_step if embeds else 0,
        tokens=tokens,
    )


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
    """Adds the gradients of an arm to its model.

    Args:
        experiment: of the arm.
        arm: its settings.
        model: in training.
        weights: its trainable parameters by name.
        ranking: the arm's ranking batches; None where it does not rank.
        embedding: the arm's embedding batches; None where it does not embed.
        conflict_log: of a joint arm.
        budget: of one backward pass, with the processes that share it.

    Attributes:
        aggregation: how the losses are weighted; a joint arm's learns.
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
        self._loss = arm.ranking_loss(experiment.training.ranking)
        if ranking:
            refuse_binary(self._loss.name, (label for labels in ranking.data.labels for label in labels))
        self.aggregation, self._joint = make_aggregation(arm), None
        if arm.task == "joint":
            conflicts = experiment.training.conflicts
            path = conflict_log if conflicts.measure else None
            self._joint = JointGradients(self._flat, self.aggregation, path, conflicts.interval)

    def add(self, step: int) -> StepLosses:
        """Add the gradient of a step, counted from 0, summed over all processes.

        If a loss is not finite, do not use the gradients.
        """
        losses: dict[Task, float] = {}
        weights, tokens, summed = self.aggregation.weights, 0, False
        if self._ranking:
            losses["ranking"], seen = self._rank(step, self._ranking.steps[step], weights["ranking"])
            tokens += seen
        if self._joint:
            self._joint.ranking_done(step)
        if self._embedding:
            losses["embedding"], seen = self._embed(self._embedding, self._embedding.steps[step], weights["embedding"])
            tokens += seen
        found = StepLosses(losses, weights, tokens)
        if self._joint and math.isfinite(found.total):
            summed = self._joint.embedding_done(step, self._task_batches(step))
        if not summed:
            self._flat.sum_up()
        return found

    def query_ids(self, step: int, tasks: Sequence[Task]) -> list[str]:
        """Return the ids of the queries in a step's batches of some tasks, each once."""
        sets = {"ranking": self._ranking, "embedding": self._embedding}
        chosen = [batches for task in tasks if (batches := sets[task])]
        ids = (batches.data.query_ids[group] for batches in chosen for group in batches.steps[step])
        return list(dict.fromkeys(ids))

    def _rank(self, step: int, rows: Sequence[int], weight: float) -> tuple[float, int]:
        training, batches = self._experiment.training, self._ranking
        assert batches is not None  # noqa: S101 - for the type checker: the arm ranks
        return ranking_backward(
            self._model, batches.data, batches.texts, rows, weight, self._loss, self._budget,
            progress=step / max(1, training.steps - 1),
        )  # fmt: skip

    def _embed(self, batches: EmbeddingBatches, rows: Sequence[int], weight: float) -> tuple[float, int]:
        recipe = self._experiment.training.embedding
        return embedding_backward(
            self._model, batches.data, batches.queries, batches.documents, rows, weight, recipe.temperature,
            self._budget, recipe.pairs_per_step,
        )  # fmt: skip

    def _task_batches(self, step: int) -> dict[Task, TaskBatch]:
        ranking, embedding = self._ranking, self._embedding
        assert ranking is not None  # noqa: S101 - for the type checker: the arm is joint
        assert embedding is not None  # noqa: S101
        lists = ranking.steps[step]
        lengths = (len(ranking.data.groups[row]) for row in lists)
        additive = is_additive(self._loss, self._experiment.lora.dropout, lengths)
        return {
            "ranking": TaskBatch(lists, lambda rows: self._rank(step, rows, 1.0), additive),
            "embedding": TaskBatch(
                embedding.steps[step], lambda rows: self._embed(embedding, rows, 1.0), additive=False
            ),
        }


def _steps(experiment: Experiment, examples: int, per_batch: int, seed: int, stream: int) -> list[list[int]]:
    """Return the rows of each step: its batches, one after the other."""
    training = experiment.training
    size = training.accumulation_steps
    batches = batch_order(examples, per_batch, training.steps * size, seed, stream)
    return [[*chain.from_iterable(batches[at : at + size])] for at in range(0, len(batches), size)]


def _texts(model: UnimodelForExp1, sequences: list[list[int]]) -> Texts:
    return Texts(sequences, model.kept_states(sequences))
