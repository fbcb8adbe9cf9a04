"""Reranking: a model's score for every first-stage candidate of a collection; or the first stage alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from unimoe.core.io import hash_parts
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.evaluation.datasets import LoadedDataset
from unimoe.evaluation.spec import Evaluation, Outcome, Work, described, rule_hashes, seen_before
from unimoe.evaluation.system import System
from unimoe.metrics.scoring import score_run
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.models.reranker import Candidates, Reranker, ShardStore, rerank_run, truncation_note
from unimoe.results import Task
from unimoe.retrieval.passages import best_passages


def describe(system: System, task: Task, data: LoadedDataset) -> Evaluation:
    """Return the reranking of a dataset's candidates, or the first stage's own retrieval."""
    dataset, hashes = data.dataset, {"collection": data.collection.content_hash, "candidates": data.candidates_hash}
    identity: dict[str, Any] = {"split": dataset.split, "max_queries": dataset.max_queries}
    identity["first_stage"] = data.first_stage.source
    if task == "reranking":  # the candidates' hash holds the rule about equal ids
        identity |= {"depth": dataset.settings.depth, "passages": dataset.passages and str(dataset.passages)}
    else:
        hashes |= rule_hashes(data.whole)
    if system.order is not None:
        hashes["order"] = f"random, seed {system.order}" if system.order else "the first stage's"
    return described(
        system,
        task,
        partial(_run if system.model else _first_stage, data),
        identity=identity,
        hashes=hashes,
        dataset=dataset.name,
        main_metric=dataset.main_metric,
        size=sum(map(len, data.to_read[1].values())) if system.model else 0,
        caveats=[*data.caveats(task), *seen_before(system, data.collection)],
    )


def _run(data: LoadedDataset, evaluation: Evaluation, work: Work) -> Outcome:
    reranker = work.loaded.reranker(**evaluation.system.experiment.evaluation.batches)
    store = ShardStore(work.folder, evaluation.fingerprint) if work.folder else None
    order = evaluation.system.order
    outcome = rerank_dataset(reranker, data, order=order, store=store, advance=work.advance)
    return replace(outcome, device=describe_device(reranker.place))


def _first_stage(data: LoadedDataset, evaluation: Evaluation, _: Work) -> Outcome:
    """Score the first stage alone: as candidates to rerank, or as retrieval from the whole corpus."""
    if evaluation.about.task != "reranking":
        return Outcome.of_run(data.collection, data.first_stage.run, data.dataset.main_metric)
    outcome = Outcome.of_run(data.collection, data.candidates, data.dataset.main_metric)
    return replace(outcome, first_stage=outcome.scores, queries_without_candidates=data.queries_without_candidates)


def rerank_collection(
    reranker: Reranker,
    collection: Collection,
    candidates: Candidates,
    *,
    main_metric: str = "ndcg@10",
    ordered: bool = True,
    passages: tuple[Collection, Candidates] | None = None,
    order: int | None = None,
    store: ShardStore | None = None,
    advance: Advance | None = None,
) -> Outcome:
    """Rerank the candidates of every query of a collection, and score the new order.

    ``ordered`` says whether the first stage's scores rank; ``passages`` are read in place of whole documents, as
    ``Passages.of_candidates`` makes them; ``order`` is that of ``System``; ``store`` and ``advance`` are as in
    ``rerank_run``.
    """
    source, read = passages or (collection, candidates)
    run, found = rerank_run(reranker, source, shuffled(read, order) if order else read, store=store, advance=advance)
    run = run if passages is None else best_passages(run)
    truncated = sorted(reranker.truncated_queries(collection.queries))
    notes = [truncation_note(collection.name, truncated)] if truncated else []
    notes += reranker.notes(run, found.usage)
    before = score_run(collection.qrels, candidates, relevance_level=collection.relevance_level) if ordered else None
    return Outcome.of_run(
        collection,
        run,
        main_metric,
        items=len(found.scores),
        seconds=found.seconds,
        token_budget=found.token_budget,
        first_stage=before,
        queries_without_candidates=sorted(query for query in collection.qrels if not candidates.get(query)),
        truncated_queries=truncated,
        notes=notes,
        usage=found.usage,
    )


def rerank_dataset(
    reranker: Reranker,
    data: LoadedDataset,
    *,
    order: int | None = None,
    store: ShardStore | None = None,
    advance: Advance | None = None,
) -> Outcome:
    """Rerank the candidates of a dataset, and score the new order; ``order`` is that of ``System``."""
    return rerank_collection(
        reranker,
        data.collection,
        data.candidates,
        main_metric=data.dataset.main_metric,
        ordered=data.first_stage.ordered,
        passages=data.to_read if data.dataset.passages else None,
        order=order,
        store=store,
        advance=advance,
    )


def shuffled(candidates: Candidates, seed: int) -> Run:
    """Return candidates in a random order, as scores from 0 downwards; that of a query depends on its id and seed."""
    found: Run = {}
    for query, scores in candidates.items():
        keys = sorted(scores, key=lambda key: hash_parts(["order", str(seed), query, key]))
        found[query] = {key: -float(place) for place, key in enumerate(keys)}
    return found
