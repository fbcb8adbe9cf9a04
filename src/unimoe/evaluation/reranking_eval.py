"""Reranking: the model's yes/no judgement of every first-stage candidate, on one collection, or on a suite of them.

``evaluate_beir``, ``evaluate_msmarco_dev`` and ``evaluate_reranking_suite`` score any causal language model from Python
and write nothing; ``scripts/evaluate.py`` does the same for checkpoints and leaves result files behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unimoe.config import Experiment
from unimoe.data.catalog import UnavailableError
from unimoe.data.collection import Collection
from unimoe.errors import DataError, UsageError
from unimoe.evaluation.as_model import as_unimodel
from unimoe.evaluation.shards import ShardStore, cut_shards, score_shards
from unimoe.evaluation.tiers import Dataset, LoadedDataset, chosen_datasets, known_tier, tier_datasets
from unimoe.metrics import Scores, score_run, suite_averages
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.processes import ALONE, Processes
from unimoe.trec import Run


@dataclass(frozen=True)
class RerankingOutcome:
    """What reranking found on one collection.

    Attributes:
        run: query id to ``{document id: logit gap}``.
        scores: the measures of the reranked run.
        first_stage: the measures of the candidates in their first-stage order; null where that is no order.
        pairs: pairs scored.
        seconds: time of scoring, of all processes together.
        reduced_budget: tokens of a batch after memory ran out in some process; null where it did not.
    """

    run: Run
    scores: Scores
    first_stage: Scores | None
    pairs: int
    seconds: float
    reduced_budget: int | None

    @property
    def delta(self) -> dict[str, float]:
        """What reranking adds to the first stage, by metric."""
        before = self.first_stage.aggregate if self.first_stage else {}
        return {metric: value - before[metric] for metric, value in self.scores.aggregate.items() if metric in before}


@dataclass(frozen=True)
class SuiteOutcome:
    """What reranking found on several collections.

    Attributes:
        datasets: by the collection's name.
        averages: metric to the mean over the sets whose main metric it is; CQADupStack counts once.
        first_stage_averages: the same of the first stage.
        missing: a line for each collection that could not be had.
    """

    datasets: dict[str, RerankingOutcome]
    averages: dict[str, float]
    first_stage_averages: dict[str, float]
    missing: list[str]


def evaluate_beir(
    model: Any, tokenizer: Any, config: Experiment, dataset_name: str, *, max_queries: int | None = None
) -> RerankingOutcome:
    """Rerank the first stage's candidates of one BEIR set, or of any collection the catalogue knows.

    Args:
        model: a causal language model of transformers, with or without adapters, or a ``UnimodelForExp1``.
        tokenizer: the model's; not read for a ``UnimodelForExp1``, which has its own.
        config: its ``prompt``, ``model.max_length`` and ``evaluation`` sections are used.
        dataset_name: such as ``scifact``, ``cqadupstack/android``, ``path:DIR``; ``@dev`` at the end chooses a split.
        max_queries: score at most this many queries, a fixed sample.

    Raises:
        UsageError: no such collection; names the closest. ``cqadupstack`` is twelve: evaluate it as a suite.
        UnavailableError: it cannot be had here.
        DataError: collection, candidates or scores are unfit.
    """
    datasets = chosen_datasets(config, [dataset_name], max_queries)
    if len(datasets) > 1:
        raise UsageError(f"{dataset_name} is {len(datasets)} collections; use evaluate_reranking_suite, or name one")
    return _rerank(as_unimodel(model, tokenizer, config), LoadedDataset(datasets[0]), config)


def evaluate_msmarco_dev(
    model: Any, tokenizer: Any, config: Experiment, *, collection: str = "msmarco", max_queries: int | None = None
) -> RerankingOutcome:
    """Rerank MS MARCO passage dev (small): 6,980 queries, MRR@10.

    Candidates are BM25's top-100 of the 8.84 M passages, or those of ``evaluation.first_stage``: a run file, or
    ``official`` for top1000.dev, which has no order and is reranked whole (``evaluation.depth`` 1000).

    Args:
        model: as in ``evaluate_beir``.
        tokenizer: as in ``evaluate_beir``.
        config: as in ``evaluate_beir``.
        collection: where the passages are: ``msmarco``, ``ir_datasets:msmarco-passage/dev/small``, or ``path:DIR`` with
            the official files or in BEIR layout.
        max_queries: score at most this many queries, a fixed sample.
    """
    return evaluate_beir(model, tokenizer, config, collection, max_queries=max_queries)


def evaluate_reranking_suite(
    model: Any,
    tokenizer: Any,
    config: Experiment,
    tier: str | Sequence[str] = "fast",
    *,
    max_queries: int | None = None,
) -> SuiteOutcome:
    """Rerank every collection of a tier, one after the other.

    Args:
        model: as in ``evaluate_beir``.
        tokenizer: as in ``evaluate_beir``.
        config: as in ``evaluate_beir``.
        tier: ``bundled``, ``fast``, ``nano`` or ``full``, or names of collections.
        max_queries: score at most this many queries of each.

    Raises:
        UsageError: no such tier or collection.
        DataError: a collection is malformed, or none of them can be had.
    """
    if isinstance(tier, str):
        chosen = tier_datasets(config, known_tier(tier), max_queries)
    else:
        chosen = chosen_datasets(config, tier, max_queries)
    unimodel = as_unimodel(model, tokenizer, config)
    outcomes: dict[str, RerankingOutcome] = {}
    missing: list[str] = []
    for dataset in chosen:
        try:
            outcomes[dataset.name] = _rerank(unimodel, LoadedDataset(dataset), config)
        except UnavailableError as error:
            missing.append(str(error))
    if not outcomes:
        raise DataError(f"none of the {len(chosen)} collections can be had; the first: {missing[0]}")
    return _suite(chosen, outcomes, missing)


def rerank_collection(
    model: UnimodelForExp1,
    collection: Collection,
    candidates: Mapping[str, Mapping[str, float]],
    *,
    ordered: bool = True,
    store: ShardStore | None = None,
    processes: Processes = ALONE,
    token_budget: int | None = None,
    batch_size: int | None = None,
    advance: Advance | None = None,
) -> RerankingOutcome:
    """Rerank the candidates of every query of a collection.

    Args:
        model: the reranker.
        collection: queries, documents and judgments.
        candidates: a run: query id to ``{document id: first-stage score}``.
        ordered: whether the first stage's scores rank.
        store: where finished shards are kept, so that a killed run goes on; null keeps none.
        processes: those that share the work; all of them get the outcome.
        token_budget: tokens of one forward pass; by default what suits the device.
        batch_size: pairs of one forward pass, instead of the budget.
        advance: called with the number of pairs done, after each batch.

    Raises:
        DataError: a candidate is no document of the collection, a query is too long, or a score is not finite.
    """
    _refuse_unknown(collection, candidates)
    shards = cut_shards(collection, candidates, model.pair_ids.order)
    scored = score_shards(
        model,
        collection,
        shards,
        store=store,
        processes=processes,
        token_budget=token_budget,
        batch_size=batch_size,
        advance=advance,
    )
    gaps = dict(zip((pair for shard in shards for pair in shard), scored.gaps, strict=True))
    run: Run = {
        query_id: {document_id: gaps[query_id, document_id] for document_id in candidates.get(query_id, {})}
        for query_id in collection.queries
    }
    level = collection.relevance_level
    first_stage = score_run(collection.qrels, candidates, relevance_level=level) if ordered else None
    reduced = min(filter(None, processes.each(model.reduced_budget or 0)), default=None)
    scores = score_run(collection.qrels, run, relevance_level=level)
    return RerankingOutcome(run, scores, first_stage, len(gaps), scored.seconds, reduced)


def _rerank(model: UnimodelForExp1, data: LoadedDataset, config: Experiment) -> RerankingOutcome:
    return rerank_collection(
        model,
        data.collection,
        data.candidates,
        ordered=data.first_stage_is_ordered,
        token_budget=config.evaluation.token_budget,
        batch_size=config.evaluation.batch_size,
    )


def _suite(chosen: Sequence[Dataset], outcomes: dict[str, RerankingOutcome], missing: list[str]) -> SuiteOutcome:
    main = {dataset.name: dataset.main_metric for dataset in chosen if dataset.name in outcomes}
    after = {name: outcomes[name].scores.aggregate for name in main}
    before = {name: first.aggregate for name in main if (first := outcomes[name].first_stage)}
    return SuiteOutcome(outcomes, suite_averages(main, after), suite_averages(main, before), missing)


def _refuse_unknown(collection: Collection, candidates: Mapping[str, Mapping[str, float]]) -> None:
    for query_id in collection.queries:
        for document_id in candidates.get(query_id, {}):
            if document_id not in collection.corpus:
                raise DataError(
                    f"candidate {document_id!r} of query {query_id!r} is no document of {collection.name}; "
                    "give a run made on this corpus"
                )
