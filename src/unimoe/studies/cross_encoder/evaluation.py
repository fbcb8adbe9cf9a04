"""A trained cross-encoder as an arm: its reranking of a first stage's candidates as an ordinary result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.data.catalog import main_metric
from unimoe.io import hash_json
from unimoe.models.device import describe_device
from unimoe.results import EvalResult, TrainingBudget
from unimoe.studies.common.pool_results import HeadMeasurement, result_there, write_head_result
from unimoe.studies.cross_encoder.model import load_cross_encoder
from unimoe.studies.cross_encoder.reranking_set import RerankingSet, rerank


@dataclass(frozen=True)
class TrainedCrossEncoder:
    """What is scored.

    Attributes:
        folder: of the model.
        arm: its name.
        seed: of the training.
        which: the best checkpoint on dev, or the last.
        base_model: identity of the base.
        weights_hash: content hash of the weights.
        max_length: tokens of a pair.
        training: what the training took.
        config: its configuration.
    """

    folder: Path
    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str
    weights_hash: str
    max_length: int
    training: TrainingBudget
    config: dict[str, Any]


@dataclass(frozen=True)
class Reporting:
    """Where results go, and what all of them say.

    Attributes:
        output_dir: the experiment's folder.
        experiment: its name.
        depth: candidates of a query.
        batch_size: pairs of one forward pass.
        max_queries: test queries scored, where they were cut.
        caveats: why results are unfit for decisions.
        given: options given by hand, for provenance.
    """

    output_dir: Path
    experiment: str
    depth: int
    batch_size: int
    max_queries: int | None = None
    caveats: Sequence[str] = ()
    given: Sequence[str] = ()


def evaluate_cross_encoder(
    model: TrainedCrossEncoder,
    data: RerankingSet,
    reporting: Reporting,
    device: torch.device,
    advance: Callable[[int], None] | None = None,
) -> EvalResult:
    """Rerank a collection's candidates and write the result, unless it is there.

    Args:
        model: what is scored.
        data: what is reranked.
        reporting: where the result goes.
        device: where to compute.
        advance: called with the number of pairs done.

    Raises:
        DataError: the place of the result is taken by another measurement, or a score is not finite.
    """
    prompt = {"pair": "query, document", "max_length": model.max_length}
    measurement = replace(
        _first_stage(data, reporting, model.config),
        arm=model.arm,
        seed=model.seed,
        device=describe_device(device),
        encoder=model.base_model,
        prompt=f"cross_encoder(max_length={model.max_length})@{hash_json(prompt)}",
        head_hash=model.weights_hash,
        checkpoint=model.which,
        training=model.training,
    )
    there = result_there(reporting.output_dir, measurement)
    if there is not None:
        if advance is not None:
            advance(data.pairs)
        return there
    start = time.perf_counter()
    run = rerank(load_cross_encoder(model.folder, device), data, reporting.batch_size, advance)
    measurement = replace(measurement, run=run, seconds=time.perf_counter() - start)
    return write_head_result(reporting.output_dir, measurement, reporting.given)


def write_first_stage(data: RerankingSet, reporting: Reporting, config: dict[str, Any]) -> EvalResult:
    """The candidates in the first stage's order, as the arm ``bm25``."""
    return write_head_result(reporting.output_dir, _first_stage(data, reporting, config), reporting.given)


def _first_stage(data: RerankingSet, reporting: Reporting, config: dict[str, Any]) -> HeadMeasurement:
    return HeadMeasurement(
        arm="bm25",
        seed=None,
        experiment=reporting.experiment,
        dataset=data.dataset,
        collection=data.collection,
        candidates=data.candidates,
        run=data.candidates,
        metric=main_metric(data.name, data.collection.split),
        first_stage=data.first_stage,
        depth=reporting.depth,
        max_queries=reporting.max_queries,
        config=config,
        device="cpu",
        seconds=0.0,
        caveats=tuple(reporting.caveats),
    )
