"""The smoke version of an experiment: small, and possible wherever the experiment is."""

from __future__ import annotations

from pathlib import Path

from unimoe.config import Experiment
from unimoe.config.files import load_experiment
from unimoe.experiment.job import smoke_version


def smoke(*override: str) -> Experiment:
    return smoke_version(load_experiment(Path("experiments/bundled"), list(override)))


def test_a_step_has_the_examples_that_it_takes() -> None:
    training = smoke("training.ranking.queries_per_step=32", "training.embedding.pairs_per_step=64").training
    assert (training.ranking.queries, training.embedding.queries) == (32, 64)
    assert (smoke().training.ranking.queries, smoke().training.embedding.queries) == (24, 48)


def test_it_is_never_larger_than_the_experiment() -> None:
    few = ("evaluation.bundled.queries=6", "evaluation.bundled.depth=3", "evaluation.bundled.pool=40")
    experiment = smoke(*few, "training.dev.queries=7", "training.dev.depth=2")
    tier, dev = experiment.evaluation.bundled, experiment.training.dev
    assert (tier.queries, tier.depth, tier.pool) == (6, 3, 40)
    assert (dev.queries, dev.depth) == (7, 2)
