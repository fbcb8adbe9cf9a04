"""The reranking of a first stage's candidates by a trained cross-encoder, as an ordinary result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.data.catalog import main_metric
from unimoe.evaluation.reranking_eval import rerank_run
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.io import hash_json
from unimoe.models.device import describe_device
from unimoe.results import EvalResult, TrainingBudget
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.cross_encoder.model import load_cross_encoder
from unimoe.studies.cross_encoder.reranking_set import CrossEncoderReranker, RerankingSet


@dataclass(frozen=True)
class TrainedCrossEncoder:
    """A trained cross-encoder that is evaluated.

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
    """Where results are written, and what they have in common.

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
    """Rerank a collection's candidates and write the result, unless it exists; a killed run is resumed.

    Args:
        model: the cross-encoder to evaluate.
        data: the collection with the candidates to rerank.
        reporting: where the result is written.
        device: where to compute.
        advance: called with the number of pairs done.

    Raises:
        DataError: the place of the result is taken by another evaluation, or a score is not finite.
    """
    prompt = {"pair": "query, document", "max_length": model.max_length}
    pools, store = _pools(data, reporting), ResultStore(reporting.output_dir, reporting.given)
    spec = pools.spec(
        model.arm,
        model.seed,
        experiment=reporting.experiment,
        config=model.config,
        encoder=model.base_model,
        prompt=f"cross_encoder(max_length={model.max_length})@{hash_json(prompt)}",
        trained_hash=model.weights_hash,
        checkpoint=model.which,
        training=model.training,
        caveats=reporting.caveats,
    )

    def evaluate() -> Outcome:
        run, found = rerank_run(
            CrossEncoderReranker(load_cross_encoder(model.folder, device), reporting.batch_size),
            data.collection,
            data.candidates,
            store=store.shards(spec, spec.fingerprint(device, None, reporting.batch_size)),
            advance=advance,
        )
        return pools.outcome(run, items=len(found.scores), seconds=found.seconds, device=describe_device(device))

    if advance is not None and store.is_done(spec):
        advance(data.pairs)
    return store.evaluated(spec, evaluate)


def write_first_stage(data: RerankingSet, reporting: Reporting, config: dict[str, Any]) -> EvalResult:
    """Write the result of the candidates in the first stage's order, as the arm ``bm25``, unless it exists."""
    pools = _pools(data, reporting)
    spec = pools.spec("bm25", None, experiment=reporting.experiment, config=config, caveats=reporting.caveats)
    store = ResultStore(reporting.output_dir, reporting.given)
    return store.evaluated(spec, lambda: pools.outcome(data.candidates))


def _pools(data: RerankingSet, reporting: Reporting) -> RerankingPools:
    return RerankingPools(
        dataset=data.dataset,
        collection=data.collection,
        candidates=data.candidates,
        metric=main_metric(data.name, data.collection.split),
        first_stage=data.first_stage,
        depth=reporting.depth,
        max_queries=reporting.max_queries,
    )
