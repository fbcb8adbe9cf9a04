"""The test of a head of a comparison: its scores as an ordinary result, and the costs of its training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unimoe.core.io import hash_file, read_json, write_json
from unimoe.data.catalog import result_name
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.models.device import describe_device
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.heads.compare.arms import Comparison
from unimoe.studies.heads.compare.memory import step_peak_bytes
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.model import evaluate_head, main_metric, pool_scores
from unimoe.studies.heads.trainer import HeadTrainer, make_method

TRAINING_FILE = "training.json"
"""Beside an arm's checkpoint: scores on train and dev, time and memory of the training."""


def training_file(trainer: HeadTrainer, output_dir: Path) -> Path:
    """Return where the costs of a training are, which are written last."""
    return arm_dir(output_dir, trainer.arm, trainer.seed) / TRAINING_FILE


def report(trainer: HeadTrainer, comparison: Comparison, output_dir: Path, given: Sequence[str]) -> float:
    """Test a training once, and write its costs; return its main metric on the test queries.

    Args:
        trainer: finished.
        comparison: that it belongs to.
        output_dir: the comparison's folder.
        given: options of the command line, for provenance.
    """
    metric, path = main_metric(trainer.config), training_file(trainer, output_dir)
    store = ResultStore(output_dir, given)
    result = store.evaluated(spec_of(trainer, comparison), lambda: tested_outcome(trainer))
    test = result.aggregate[metric]
    if not path.exists() or read_json(path, dict[str, Any])["fingerprint"] != trainer.state.fingerprint:
        facts, (weight, _) = trainer.fit(), trainer.head()
        train = evaluate_head(weight.to(trainer.device), trainer.train_pools, trainer.config).aggregate[metric]
        costs = {"train": train, "test": test, "peak_bytes": _peak_bytes(trainer)}
        write_json(path, {"fingerprint": trainer.state.fingerprint, **costs, **facts})
    return test


def _peak_bytes(trainer: HeadTrainer) -> int | None:
    """Measure the peak of one step, beside weights and data; return None where nothing is trained."""
    weight = trainer.initial()
    method = make_method(trainer.config, weight, trainer.train_pools, trainer.dates)
    if method is None:
        return None
    return step_peak_bytes(method, weight, trainer.train_pools.batch(trainer.batch(0)))


def pools_tested(data: HeadData, config: TrainConfig) -> RerankingPools:
    """Return the test pools of the heads."""
    return RerankingPools(
        dataset=result_name(config.task),
        collection=data.splits.test,
        candidates=data.candidates,
        metric=main_metric(config),
        first_stage=data.first_stage,
        depth=config.pools.depth,
    )


def spec_of(trainer: HeadTrainer, comparison: Comparison) -> Evaluation:
    """Return the evaluation of a finished training on the test pools."""
    data, config = trainer.data, trainer.config
    facts, untrained = trainer.fit(), trainer.seed is None
    steps = int(facts["steps"])
    seen = steps * min(config.batch_size, len(data.train))
    budget = TrainingBudget(steps=steps, ranking_examples=seen, embedding_examples=0, tokens=0)
    return pools_tested(data, config).spec(
        trainer.arm,
        trainer.seed,
        experiment=comparison.name,
        config={
            "comparison": comparison.model_dump(),
            "training": config.model_dump(),
            "paired_seeds": shares_seeds(config, comparison.base),
        },
        encoder=data.encoder,
        prompt=data.prompt,
        trained_hash=None if untrained else hash_file(trainer.head_path),
        training=None if untrained else budget,
        caveats=comparison.caveats,
    )


def tested_outcome(trainer: HeadTrainer) -> Outcome:
    """Score a finished training on the test pools."""
    data, start = trainer.data, time.perf_counter()
    weight, _ = trainer.head()
    run = data.test.run(pool_scores(weight, data.test, trainer.config))
    seconds, device = time.perf_counter() - start, describe_device(trainer.device)
    return pools_tested(data, trainer.config).outcome(
        run, items=sum(map(len, run.values())), seconds=seconds, device=device
    )


def shares_seeds(config: TrainConfig, base: TrainConfig) -> bool:
    """Return whether a seed gives a training the first weights and the order of queries that it gives the base.

    Every epoch's order depends on the seed alone, and so do the first weights of one kind and size.
    """
    keys = ("init", "head_output_size", "batch_size", "num_steps")
    return all(getattr(config, key) == getattr(base, key) for key in keys)
