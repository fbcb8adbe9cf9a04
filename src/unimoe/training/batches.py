"""The examples of an arm, and which of them each step sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from unimoe.config import Experiment
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget
from unimoe.training.examples import EmbeddingSet, RankingSet, TrainingData, batch_order
from unimoe.training.steps import Texts

_RANKING_STREAM, _EMBEDDING_STREAM = 0, 1


@dataclass(frozen=True)
class RankingBatches:
    """The ranking examples of an arm.

    Attributes:
        data: the examples.
        texts: their sequences.
        steps: which groups each step sees.
    """

    data: RankingSet
    texts: Texts
    steps: Sequence[Sequence[int]]


@dataclass(frozen=True)
class EmbeddingBatches:
    """The embedding examples of an arm.

    Attributes:
        data: the examples.
        queries: their queries.
        documents: their documents.
        steps: which groups each step sees.
    """

    data: EmbeddingSet
    queries: Texts
    documents: Texts
    steps: Sequence[Sequence[int]]


def ranking_batches(experiment: Experiment, seed: int, data: TrainingData, model: UnimodelForExp1) -> RankingBatches:
    """Return the ranking batches of a training, the same for every arm that ranks.

    Raises:
        DataError: too few examples.
    """
    examples = data.ranking(model)
    per_step = experiment.training.ranking.queries_per_step
    order = _steps(experiment, len(examples.groups), per_step, seed, _RANKING_STREAM)
    return RankingBatches(examples, _texts(model, examples.sequences), order)


def embedding_batches(
    experiment: Experiment, seed: int, data: TrainingData, model: UnimodelForExp1
) -> EmbeddingBatches:
    """Return the embedding batches of a training, the same for every arm that embeds.

    Raises:
        DataError: too few examples.
    """
    examples = data.embedding(model)
    per_step = experiment.training.embedding.pairs_per_step
    order = _steps(experiment, len(examples.groups), per_step, seed, _EMBEDDING_STREAM)
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


def _steps(experiment: Experiment, examples: int, per_batch: int, seed: int, stream: int) -> list[list[int]]:
    """Return the rows of each step: its batches, one after the other."""
    training = experiment.training
    size = training.accumulation_steps
    batches = batch_order(examples, per_batch, training.steps * size, seed, stream)
    return [[*chain.from_iterable(batches[at : at + size])] for at in range(0, len(batches), size)]


def _texts(model: UnimodelForExp1, sequences: list[list[int]]) -> Texts:
    return Texts(sequences, model.frozen_layers.states(sequences) if model.frozen_layers else None)
