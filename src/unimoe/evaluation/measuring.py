"""Takes one measurement: runs the subject on the data, and gathers what a result file will hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.measurement import Measurement, used_budget
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.measurement import TaskMeasurement
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.run import Counted, TaskOutcome, evaluate_task
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.shards import ShardStore
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.metrics import Scores, score_run
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.processes import Processes
from unimoe.results import FirstStageScores
from unimoe.trec import Qrels, Run

_GIVEN = FirstStageScores(aggregate={}, delta={}, queries_without_candidates=[])
"""The candidates of a reranking task of MTEB: given with it, in no order."""


@dataclass(frozen=True)
class Found:
    """What one measurement found, before it becomes a result.

    Attributes:
        main_metric: the metric that counts.
        aggregate: metric to its value.
        qrels: the judgments; empty for tasks without queries.
        queries: the texts of the judged queries, at least; likewise.
        run: query id to ``{document id: score}``; likewise.
        scores: per query; null for tasks without queries.
        items: pairs or texts scored by a model.
        seconds: time of scoring.
        token_budget: tokens of one forward pass.
        first_stage: of the candidates before reranking.
        sidecars: suffix of a file beside the result to its content.
        relevance_level: the lowest grade that binary metrics counted as relevant.
    """

    main_metric: str
    aggregate: dict[str, float]
    qrels: Qrels
    queries: Mapping[str, str]
    run: Run
    scores: Scores | None
    items: int | None = None
    seconds: float = 0.0
    token_budget: int | None = None
    first_stage: FirstStageScores | None = None
    sidecars: Mapping[str, object] = field(default_factory=dict)
    relevance_level: int = 1


def measure_first_stage(measurement: Measurement) -> Found:
    """The first stage alone: as candidates to rerank, or as retrieval from the whole corpus."""
    data, reranking = measurement.data, measurement.task == "reranking"
    run = data.candidates if reranking else data.first_stage_run
    scores = score_run(data.collection.qrels, run, relevance_level=data.collection.relevance_level)
    first_stage = _first_stage_scores(data, scores, scores if data.first_stage_is_ordered else None)
    return _found(data, run, scores, scores.aggregate, first_stage=first_stage if reranking else None)


def measure_reranking(
    measurement: Measurement,
    model: UnimodelForExp1,
    store: ShardStore,
    processes: Processes,
    advance: Advance | None,
) -> Found:
    """The yes/no judgement of every candidate."""
    data, evaluation = measurement.data, measurement.subject.experiment.evaluation
    reranked = rerank_collection(
        model,
        data.collection,
        data.candidates,
        ordered=data.first_stage_is_ordered,
        store=store,
        processes=processes,
        token_budget=evaluation.token_budget,
        batch_size=evaluation.batch_size,
        advance=advance,
    )
    return _found(
        data,
        reranked.run,
        reranked.scores,
        reranked.scores.aggregate,
        items=reranked.pairs,
        seconds=reranked.seconds / processes.size,
        token_budget=used_budget(measurement.subject, model.device, reranked.reduced_budget),
        first_stage=_first_stage_scores(data, reranked.scores, reranked.first_stage),
    )


def measure_embedding(measurement: Measurement, model: UnimodelForExp1, advance: Advance | None) -> Found:
    """The collection ranked by the cosine of embeddings, through MTEB."""
    data, subject, evaluation = measurement.data, measurement.subject, measurement.subject.experiment.evaluation
    embedded = evaluate_embedding_collection(
        model,
        data.pooled,
        name=subject.name,
        identity=measurement.hashes | {"dtype": str(subject.dtype)},
        prompts=TaskPrompts(evaluation.mteb),
        token_budget=evaluation.token_budget,
        batch_size=evaluation.batch_size,
        exclude_self=data.dataset.exclude_self,
        advance=advance,
    )
    scores = embedded.ranked_scores
    return _found(
        data,
        embedded.run,
        scores,
        scores.aggregate | ({"main_score": embedded.main_score} if measurement.task_type else {}),
        items=embedded.items,
        seconds=embedded.seconds,
        token_budget=used_budget(subject, model.device, model.reduced_budget),
        sidecars={".mteb.json": embedded.mteb_json},
    )


def measure_task(measurement: TaskMeasurement, model: UnimodelForExp1, advance: Advance | None) -> Found:
    """A task of MTEB, by embeddings or by a cross-encoder."""
    subject, counted = measurement.subject, Counted(advance)
    evaluation = subject.experiment.evaluation
    options: dict[str, Any] = {
        "name": subject.name,
        "identity": measurement.hashes | {"dtype": str(subject.dtype)},
        "token_budget": evaluation.token_budget,
        "batch_size": evaluation.batch_size,
        "advance": counted,
    }
    reranking = measurement.task == "reranking"
    wrapped: MTEBEncoderWrapper | MTEBCrossEncoderWrapper
    if reranking:
        wrapped = MTEBCrossEncoderWrapper(model, **options)
    else:
        wrapped = MTEBEncoderWrapper(model, prompts=TaskPrompts(evaluation.mteb), **options)
    outcome = evaluate_task(wrapped, measurement.mteb_task, counted)
    return Found(
        main_metric=outcome.main_metric,
        aggregate=_task_aggregate(outcome),
        qrels=outcome.qrels,
        queries=outcome.queries,
        run=outcome.run,
        scores=outcome.scores,
        items=outcome.items,
        seconds=outcome.seconds,
        token_budget=used_budget(subject, model.device, model.reduced_budget),
        first_stage=_GIVEN if reranking else None,
        sidecars={".mteb.json": outcome.mteb_json},
        relevance_level=outcome.relevance_level,
    )


def _found(data: LoadedDataset, run: Run, scores: Scores, aggregate: dict[str, float], **facts: Any) -> Found:
    collection = data.collection
    return Found(
        data.dataset.main_metric,
        aggregate,
        collection.qrels,
        collection.queries,
        run,
        scores,
        relevance_level=collection.relevance_level,
        **facts,
    )


def _first_stage_scores(data: LoadedDataset, scores: Scores, first_stage: Scores | None) -> FirstStageScores:
    before = first_stage.aggregate if first_stage else {}
    return FirstStageScores(
        aggregate=before,
        delta={metric: scores.aggregate[metric] - value for metric, value in before.items()},
        queries_without_candidates=data.queries_without_candidates,
    )


def _task_aggregate(outcome: TaskOutcome) -> dict[str, float]:
    """Ours where there are queries, with MTEB's main score beside them; else that score alone."""
    if outcome.scores is None:
        return {outcome.main_metric: outcome.main_score}
    return outcome.scores.aggregate | {"main_score": outcome.main_score}
