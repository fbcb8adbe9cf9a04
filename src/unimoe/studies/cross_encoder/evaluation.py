"""The reranking of a first stage's candidates by a trained cross-encoder, as an ordinary result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.core.io import hash_json
from unimoe.data.catalog import main_metric
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.reranking.shards import ShardStore, rerank_run
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.models.device import describe_device
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.results import EvalResult
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.reranking_set import RerankingSet
from unimoe.studies.cross_encoder.training.checkpoint import CrossEncoderManifest
from unimoe.studies.cross_encoder.training.trainer import CrossEncoderTraining


def report_first_stage(
    config: CrossEncoderConfig, dataset: RerankingSet, given: Sequence[str], recorded: Mapping[str, Any]
) -> EvalResult:
    """Write the result of the first stage, the arm ``bm25``, unless it exists; ``recorded`` is the config in it."""
    pools, store = _pools(dataset, config), ResultStore(Path(config.output_dir), given)
    spec = pools.spec("bm25", None, experiment=config.name, config=recorded, caveats=config.caveats)
    return store.evaluated(spec, lambda: pools.outcome(dataset.candidates))


def report_trained(
    training: CrossEncoderTraining,
    manifest: CrossEncoderManifest,
    dataset: RerankingSet,
    given: Sequence[str],
    advance: Callable[[int], None],
    *,
    paired: bool = False,
) -> EvalResult:
    """Write the result of a trained cross-encoder on one set, unless it exists; a killed reranking is resumed.

    Args:
        training: finished.
        manifest: of its checkpoint.
        dataset: the collection with the candidates to rerank.
        given: command-line options, for provenance.
        advance: called with the number of pairs scored.
        paired: record that trainings of one seed share the order of the data and the first weights.

    Raises:
        DataError: the place of a result is taken by another evaluation, or a score is not finite.
    """
    config, device = training.config, training.device
    pools, store = _pools(dataset, config), ResultStore(Path(config.output_dir), given)
    max_length, batch_size = config.model.max_length, config.evaluation.batch_size
    prompt = {"pair": "query, document", "max_length": max_length}
    spec = pools.spec(
        manifest.arm,
        manifest.seed,
        experiment=config.name,
        config=manifest.config | ({"paired_seeds": True} if paired else {}),
        encoder=manifest.base_model,
        prompt=f"cross_encoder(max_length={max_length})@{hash_json(prompt)}",
        trained_hash=manifest.weights_hash,
        checkpoint=manifest.which,
        training=manifest.training,
        caveats=config.caveats,
    )

    def evaluate() -> Outcome:
        run, found = rerank_run(
            CrossEncoderReranker(load_cross_encoder(training.checkpoint_dir, device), batch_size),
            dataset.collection,
            dataset.candidates,
            store=ShardStore(store.unfinished(spec), spec.fingerprint),
            advance=advance,
        )
        return pools.outcome(run, items=len(found.scores), seconds=found.seconds, device=describe_device(device))

    if store.is_done(spec):
        advance(dataset.pairs)
    return store.evaluated(spec, evaluate)


def _pools(data: RerankingSet, config: CrossEncoderConfig) -> RerankingPools:
    return RerankingPools(
        dataset=data.dataset,
        collection=data.collection,
        candidates=data.candidates,
        metric=main_metric(data.name, data.collection.split),
        first_stage=data.first_stage,
        depth=config.evaluation.depth,
        max_queries=config.evaluation.test_queries,
    )
