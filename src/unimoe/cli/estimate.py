"""How long an experiment will take, from its sizes and the measured speed of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from unimoe.config import Experiment
from unimoe.models.base import BaseModel
from unimoe.models.bundled import BUNDLED_LAYER_WEIGHTS, BUNDLED_LAYERS

_EFFICIENCY = 0.5
"""The part of the speed of matrix products that a decoder reaches; attention and norms take the rest. Measured on two
cores with bfloat16 units, see docs/performance.md."""

_TRAINING_PASS = 3.0
"""Cost of a training pass in forward passes: the backward pass takes twice as long."""

_QUERY_TOKENS = 24
_LONG_SECONDS = 30 * 60.0
_FIXED_SECONDS = 60.0  # importing libraries, loading models, first stage, statistics, figures


@dataclass(frozen=True)
class Shape:
    """The size of a decoder."""

    layers: int
    layer_weights: int


BUNDLED_SHAPE = Shape(BUNDLED_LAYERS, BUNDLED_LAYER_WEIGHTS)


def shape_of(base: BaseModel) -> Shape:
    """Return the size of a loaded model's decoder."""
    layers = base.model.model.layers
    return Shape(len(layers), sum(weight.numel() for weight in layers.parameters() if weight.dim() > 1))


def estimated_seconds(experiment: Experiment, shape: Shape, flops_per_s: float) -> float:
    """Return the seconds that an experiment takes with its bundled tier.

    Args:
        experiment: the experiment.
        shape: the size of its base model.
        flops_per_s: measured speed of matrix products in the dtype that it will use.
    """
    low = experiment.lora.first_of(shape.layers) / shape.layers
    seconds_per_token = 2 * shape.layer_weights / (flops_per_s * _EFFICIENCY)
    return _FIXED_SECONDS + seconds_per_token * (low * _shared_tokens(experiment) + (1 - low) * _arm_tokens(experiment))


def expectation(seconds: float, smoke: bool = False) -> str:
    """Return the expected time in words; where it is long, with a hint at --smoke unless that is what runs."""
    expected = f"about {seconds / 60:.0f} minutes from scratch on this machine"
    if smoke or seconds <= _LONG_SECONDS:
        return expected
    return f"{expected}; --smoke does all of it with few steps"


def _shared_tokens(experiment: Experiment) -> float:
    """Return the tokens that pass the frozen layers once for all arms."""
    training = experiment.training
    ranking = (training.ranking.queries or 0) * _prompts(experiment) * experiment.model.max_length
    embedding = (training.embedding.queries or 0) * _pair_tokens(experiment)
    return ranking + embedding + sum(_evaluation_tokens(experiment))


def _arm_tokens(experiment: Experiment) -> float:
    """Return the tokens that pass the adapted layers, over all arms and seeds, training passes weighted."""
    training, seeds = experiment.training, len(experiment.seeds)
    rerank, embed = _evaluation_tokens(experiment)
    tasks = [arm.task for arm in experiment.arms.values()]
    ranking, embedding = sum(t != "emb_only" for t in tasks), sum(t != "rank_only" for t in tasks)
    ranking_step = training.ranking.queries_per_step * _prompts(experiment) * experiment.model.max_length
    embedding_step = training.embedding.pairs_per_step * _pair_tokens(experiment)
    batches = training.steps * training.accumulation_steps * seeds
    trained = batches * (ranking * ranking_step + embedding * embedding_step)
    return _TRAINING_PASS * trained + rerank * (1 + seeds * len(tasks)) + embed * (1 + seeds * embedding)


def _evaluation_tokens(experiment: Experiment) -> tuple[float, float]:
    tier, length = experiment.evaluation.bundled, experiment.model.max_length
    return tier.queries * tier.depth * length, tier.pool * length + tier.queries * _QUERY_TOKENS


def _prompts(experiment: Experiment) -> int:
    recipe = experiment.training.ranking
    return 1 + recipe.hard_negatives + recipe.random_negatives


def _pair_tokens(experiment: Experiment) -> float:
    return _QUERY_TOKENS + (1 + experiment.training.embedding.hard_negatives) * experiment.model.max_length
