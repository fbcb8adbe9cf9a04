"""Evaluates one arm on one dataset and writes what it finds: result, drill-down, TREC run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unimoe.checkpoint import Checkpoint
from unimoe.config import Experiment
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.io import write_json
from unimoe.metrics import Scores, score_run
from unimoe.models.device import describe_device
from unimoe.models.unimodel import Advance, UnimodelForExp1
from unimoe.provenance import collect_provenance
from unimoe.results import (
    DrillDown,
    EvalResult,
    Identity,
    QueryDetail,
    Task,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
    write_result,
)
from unimoe.trec import Run, ranked, write_run

MAIN_METRIC = {"msmarco": "mrr@10"}
"""The main metric where it is not nDCG@10."""

BM25_ARM, ZERO_SHOT_ARM = "bm25", "zero_shot"


@dataclass(frozen=True)
class Subject:
    """What is evaluated: an arm with its model, or the first stage alone.

    Attributes:
        name: the arm.
        experiment: its configuration.
        load: gives the model, when it is needed; null for the first stage.
        base_identity: of the base model.
        prompt: name and hash of the prompt.
        dtype: what the model computes in.
        checkpoint: of a trained arm.
    """

    name: str
    experiment: Experiment
    load: Callable[[], UnimodelForExp1] | None = None
    base_identity: str | None = None
    prompt: str | None = None
    dtype: str | None = None
    checkpoint: Checkpoint | None = None

    @property
    def seed(self) -> int | None:
        """The training seed; null for arms that have none."""
        return self.checkpoint.seed if self.checkpoint else None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the arm is evaluated on: reranking always, embedding unless it was trained to rank only."""
        if self.load is None:
            return ("reranking", "retrieval")
        trained_to_rank = self.checkpoint and self.experiment.arm(self.name).task == "rank_only"
        return ("reranking",) if trained_to_rank else ("reranking", "embedding")


@dataclass(frozen=True)
class _Found:
    """What one evaluation measured, before it becomes a result."""

    run: Run
    scores: Scores
    items: int | None
    seconds: float
    sidecars: dict[str, object]


class Evaluator:
    """Evaluates subjects on loaded datasets, each result once.

    Args:
        output_dir: the experiment's folder.
        given: options and config keys given by hand, for provenance.
    """

    def __init__(self, output_dir: Path, given: Sequence[str] = ()) -> None:
        self._output_dir = output_dir
        self._given = list(given)

    def is_done(self, subject: Subject, task: Task, data: LoadedDataset) -> bool:
        """Whether the result on disk is of this very measurement: same identity, and same content hashes and dtype.

        Raises:
            DataError: the file on disk is damaged.
        """
        path = result_path(self._output_dir, subject.name, subject.seed, task, data.dataset.collection)
        run = run_path(self._output_dir, subject.name, subject.seed, task, data.dataset.collection)
        if not path.exists() or not run.exists():
            return False
        found = read_result(path)
        return (found.identity, found.provenance.hashes, found.provenance.dtype, found.caveats) == (
            _identity(subject, task, data),
            _hashes(subject, task, data),
            subject.dtype,
            _caveats(subject, data),
        )

    def evaluate(self, subject: Subject, task: Task, data: LoadedDataset, advance: Advance | None = None) -> EvalResult:
        """Evaluate and write; the result file comes last, so that its presence means completeness.

        Raises:
            DataError: the place of the result is taken by another measurement, or a score is not finite.
        """
        dataset = data.dataset.collection
        path = result_path(self._output_dir, subject.name, subject.seed, task, dataset)
        if path.exists():  # before hours of scoring, and before the run beside it is touched
            refuse_other_identity(path, _identity(subject, task, data), dataset)
        found = self._measure(subject, task, data, advance)
        main = MAIN_METRIC.get(dataset, "ndcg@10")
        device = describe_device(subject.load().device) if subject.load else "cpu"
        result = EvalResult(
            config_name=subject.name,
            seed=subject.seed,
            task=task,
            dataset=dataset,
            main_metric=main,
            aggregate=found.scores.aggregate,
            per_query=found.scores.per_query[main],
            per_query_metrics={name: values for name, values in found.scores.per_query.items() if name != main},
            unjudged_queries=found.scores.unjudged_queries,
            caveats=_caveats(subject, data),
            identity=_identity(subject, task, data),
            training=subject.checkpoint.training if subject.checkpoint else None,
            config=subject.experiment.model_dump(),
            provenance=collect_provenance(
                device=device,
                dtype=subject.dtype,
                hashes=_hashes(subject, task, data),
                wall_time_s=found.seconds,
                items=found.items,
                given=self._given,
            ),
        )
        write_run(run_path(self._output_dir, subject.name, subject.seed, task, dataset), found.run, subject.name)
        for suffix, content in found.sidecars.items():
            write_json(path.with_suffix(suffix), content)
        write_result(self._output_dir, result, _drilldown(data, found.run))
        return result

    def _measure(self, subject: Subject, task: Task, data: LoadedDataset, advance: Advance | None) -> _Found:
        if subject.load is None:
            run = data.candidates if task == "reranking" else data.first_stage_run
            return _Found(run, score_run(data.collection.qrels, run), None, 0.0, {})
        evaluation = subject.experiment.evaluation
        if task == "reranking":
            reranked = rerank_collection(
                subject.load(),
                data.collection,
                data.candidates,
                token_budget=evaluation.token_budget,
                batch_size=evaluation.batch_size,
                advance=advance,
            )
            return _Found(reranked.run, reranked.scores, reranked.pairs, reranked.seconds, {})
        embedded = evaluate_embedding_collection(
            subject.load(),
            data.pooled,
            name=subject.name,
            identity=_hashes(subject, task, data) | {"dtype": str(subject.dtype)},
            token_budget=evaluation.token_budget,
            batch_size=evaluation.batch_size,
            exclude_self=data.dataset.exclude_self,
            advance=advance,
        )
        return _Found(
            embedded.run, embedded.scores, embedded.texts, embedded.seconds, {".mteb.json": embedded.mteb_json}
        )


def _identity(subject: Subject, task: Task, data: LoadedDataset) -> Identity:
    dataset = data.dataset
    return Identity(
        experiment=subject.experiment.name,
        base_model=subject.base_identity,
        checkpoint=subject.checkpoint.which if subject.checkpoint else "none",
        split=dataset.split,
        first_stage=None if task == "embedding" else data.first_stage,
        depth=dataset.depth if task == "reranking" else None,
        pool=len(data.pooled.corpus) if task == "embedding" and len(data.pooled.corpus) < data.whole_size else None,
        prompt=subject.prompt,
        max_queries=dataset.max_queries,
    )


def _hashes(subject: Subject, task: Task, data: LoadedDataset) -> dict[str, str]:
    hashes = {"collection": data.hashes["collection"]}
    hashes |= {"pool": data.hashes["pool"]} if task == "embedding" else {"candidates": data.hashes["candidates"]}
    if subject.base_identity and subject.prompt:
        hashes["base_model"] = subject.base_identity.rpartition("@")[2]
        hashes["prompt"] = subject.prompt.rpartition("@")[2]
    if subject.checkpoint:
        hashes["checkpoint"] = subject.checkpoint.adapter_hash
    return hashes


def _caveats(subject: Subject, data: LoadedDataset) -> list[str]:
    return [*subject.experiment.caveats, *data.caveats]


def _drilldown(data: LoadedDataset, run: Run) -> DrillDown:
    details = {}
    for query_id, grades in data.collection.qrels.items():
        places = {document_id: place for place, document_id in enumerate(ranked(run.get(query_id, {})), start=1)}
        relevant = {document_id: grade for document_id, grade in grades.items() if grade > 0}
        details[query_id] = QueryDetail(
            text=data.collection.queries[query_id],
            relevant=relevant,
            ranks={document_id: places.get(document_id) for document_id in relevant},
        )
    return DrillDown(queries=details)
