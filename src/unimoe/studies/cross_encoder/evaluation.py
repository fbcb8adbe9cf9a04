"""The reranking of a first stage's candidates by a trained cross-encoder as an ordinary result; a training's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unimoe.checks import report
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import MissingPartError
from unimoe.core.io import hash_json
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.models.device import describe_device
from unimoe.models.model_files import first_line
from unimoe.models.reranker import ShardStore, rerank_run
from unimoe.models.rerankers.cross_encoder import CrossEncoderReranker, load_cross_encoder
from unimoe.results import EvalResult
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.data import load_cross_encoder_data
from unimoe.studies.cross_encoder.trainer import CrossEncoderManifest, CrossEncoderTraining
from unimoe.training.losses.listwise import are_binary


def report_first_stage(
    config: CrossEncoderConfig, pools: RerankingPools, given: Sequence[str], recorded: Mapping[str, Any]
) -> EvalResult:
    """Write the result of the first stage, the arm ``bm25``, unless it exists; ``recorded`` is the config in it."""
    spec = pools.spec("bm25", None, experiment=config.name, config=recorded, caveats=config.caveats)
    return ResultStore(Path(config.output_dir), given).evaluated(spec, lambda: pools.outcome(pools.candidates))


def report_trained(
    training: CrossEncoderTraining,
    manifest: CrossEncoderManifest,
    pools: RerankingPools,
    given: Sequence[str],
    advance: Callable[[int], None],
    *,
    draws: str | None = None,
) -> EvalResult:
    """Write the result of a finished training on one set, unless it exists; a killed reranking is resumed.

    ``manifest`` is the one that ``training.fit()`` returned. ``advance`` is called with the number of pairs scored.
    ``draws`` is recorded: trainings of one seed for which it is the same share the lists, their order and the first
    weights.
    """
    config, device = training.config, training.device
    store, max_length = ResultStore(Path(config.output_dir), given), config.model.max_length
    prompt = {"pair": "query, document", "max_length": max_length}
    spec = pools.spec(
        manifest.arm,
        manifest.seed,
        experiment=config.name,
        config=manifest.config | ({"paired_seeds": draws} if draws else {}),
        encoder=manifest.base_model,
        prompt=f"cross_encoder(max_length={max_length})@{hash_json(prompt)}",
        trained_hash=manifest.weights_hash,
        checkpoint=manifest.which,
        training=manifest.training,
        caveats=[*config.caveats, *training.base_seen.caveats(pools.collection.judged_queries)],
    )

    def evaluate() -> Outcome:
        run, found = rerank_run(
            CrossEncoderReranker(load_cross_encoder(training.checkpoint_dir, device), config.evaluation.batch_size),
            pools.collection,
            pools.candidates,
            store=ShardStore(store.unfinished(spec), spec.fingerprint),
            advance=advance,
        )
        return pools.outcome(run, items=len(found.scores), seconds=found.seconds, device=describe_device(device))

    if store.is_done(spec):
        advance(pools.pairs)
    return store.evaluated(spec, evaluate)


def train_and_evaluate(config: CrossEncoderConfig, device: torch.device, given: Sequence[str] = ()) -> None:
    """Train, evaluate, and print the test scores with BM25's; finished parts are skipped."""
    with Steps(1).step(f"{config.lists.source}: lists made", None) as step:
        data = load_cross_encoder_data(config)
        training = CrossEncoderTraining(config, data, device)
        lists = training.lists.lists
        step.outcome = f"{len(lists):,} lists, {sum(len(one.documents) for one in lists):,} documents"
    notes = training.lists.notes
    if config.loss.name == "adrmse" and are_binary(label for one in lists for label in one.labels):
        notes.append("loss adrmse is made for graded labels; of 0 and 1 it learns that the rest share one rank")
    report(data.checks)
    for note in notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    steps = Steps(1 + len(data.test))
    with steps.step(f"{config.arm}, seed {config.seed}: {config.loss.name}", training.steps) as step:
        training.run_with_bar(step)
        manifest = training.fit()
        change = f"{100 * manifest.start:.2f} -> {100 * manifest.dev:.2f}"
        step.outcome = f"nDCG@10 on dev {change} (best after step {manifest.best_step})"
    for pools in data.test:
        with steps.step(f"reranking {pools.dataset}", pools.pairs) as step:
            before = report_first_stage(config, pools, given, manifest.config).aggregate
            result = report_trained(training, manifest, pools, given, step.advance)
            after = result.aggregate
        for metric in ("map", "mrr@10", "ndcg@10"):
            gain = f"{after[metric] - before[metric]:+.4f} over BM25"
            stdout.print(f"{pools.dataset}  {metric:<8}{after[metric]:.4f} ({gain})", soft_wrap=True)
        for caveat in result.caveats:
            stdout.print(f"caveat: {caveat}", soft_wrap=True)
    stdout.print(f"model  {training.checkpoint_dir}", soft_wrap=True)
    if config.push_to_hub is not None:
        _push(config.push_to_hub, training.checkpoint_dir, device)


def _push(repository: str, folder: Path, device: torch.device) -> None:
    try:
        load_cross_encoder(folder, device).push_to_hub(repository)
    except Exception as error:  # the hub's client ends in errors of many kinds: no token, no network, no such place
        raise MissingPartError(
            f"the model could not be uploaded to {repository} ({first_line(error)}); it is complete in {folder}: log "
            "in with `hf auth login` and run the same command again"
        ) from None
    stdout.print(f"hub    {repository}", soft_wrap=True)
