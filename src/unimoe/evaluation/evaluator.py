"""Takes measurements and writes what they find: result, drill-down, TREC run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.measurement import Measurement
from unimoe.evaluation.processes import ALONE, Processes
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.shards import ShardStore
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.io import write_json
from unimoe.metrics import Scores, score_run
from unimoe.models.device import describe_device
from unimoe.models.unimodel import Advance, UnimodelForExp1
from unimoe.provenance import collect_provenance
from unimoe.results import (
    EvalResult,
    FirstStageScores,
    arm_dir,
    by_query_id,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
    safe_name,
    write_result,
)
from unimoe.trec import Run, write_qrels, write_run


@dataclass(frozen=True)
class _Found:
    """What one evaluation measured, before it becomes a result."""

    run: Run
    scores: Scores
    items: int | None = None
    seconds: float = 0.0
    token_budget: int | None = None
    first_stage: Scores | None = None
    sidecars: Mapping[str, object] = field(default_factory=dict)


class Evaluator:
    """Takes measurements, each once.

    Args:
        output_dir: the experiment's folder.
        given: options and config keys given by hand, for provenance.
        processes: those that share the reranking; the leader does everything else, and alone writes results.
    """

    def __init__(self, output_dir: Path, given: Sequence[str] = (), processes: Processes = ALONE) -> None:
        self.output_dir = output_dir
        self._given = list(given)
        self._processes = processes

    def is_done(self, measurement: Measurement) -> bool:
        """Whether the result on disk is of this very measurement: same identity, and same content hashes and dtype.

        Raises:
            DataError: the file on disk is damaged.
        """
        return self._processes.leader_says(self._processes.leads and self._is_on_disk(measurement))

    def evaluate(self, measurement: Measurement, advance: Advance | None = None) -> EvalResult | None:
        """Measure and write; the result file comes last, so that its presence means completeness.

        Returns:
            The result; null in processes that do not lead.

        Raises:
            DataError: the place of the result is taken by another measurement, or a score is not finite.
        """
        load = measurement.subject.load if measurement.task == "reranking" else None
        if not self._processes.leads and load is None:
            return None
        path = self.result_path(measurement)
        if path.exists():  # before hours of scoring, and before the run beside it is touched
            refuse_other_identity(path, measurement.identity, measurement.data.dataset.collection)
        found = self._measure(measurement, advance)
        if not self._processes.leads:
            return None
        result = self._result(measurement, found)
        write_run(self._run_path(measurement), found.run, measurement.subject.name)
        self._write_qrels(measurement.data)
        for suffix, content in found.sidecars.items():
            write_json(path.with_suffix(suffix), content)
        write_result(self.output_dir, result, measurement.drilldown(found.run))
        if load is not None:
            self._store(measurement, load()).clear()
        return result

    def result_path(self, measurement: Measurement) -> Path:
        """Where the result of a measurement lives."""
        subject, dataset = measurement.subject, measurement.data.dataset
        return result_path(self.output_dir, subject.name, subject.seed, measurement.task, dataset.collection)

    def _is_on_disk(self, measurement: Measurement) -> bool:
        path = self.result_path(measurement)
        if not path.exists() or not self._run_path(measurement).exists():
            return False
        found = read_result(path)
        return (found.identity, found.provenance.hashes, found.provenance.dtype, found.caveats) == (
            measurement.identity,
            measurement.hashes,
            measurement.subject.dtype,
            measurement.caveats,
        )

    def _result(self, measurement: Measurement, found: _Found) -> EvalResult:
        subject, data, main = measurement.subject, measurement.data, measurement.data.dataset.main_metric
        return EvalResult(
            config_name=subject.name,
            seed=subject.seed,
            task=measurement.task,
            dataset=data.dataset.collection,
            main_metric=main,
            aggregate=found.scores.aggregate,
            per_query=found.scores.per_query[main],
            per_query_metrics={
                name: by_query_id(values) for name, values in found.scores.per_query.items() if name != main
            },
            unjudged_queries=found.scores.unjudged_queries,
            first_stage=_first_stage_scores(data, found) if measurement.task == "reranking" else None,
            caveats=measurement.caveats,
            identity=measurement.identity,
            training=subject.checkpoint.training if subject.checkpoint else None,
            config=subject.experiment.model_dump(),
            provenance=collect_provenance(
                device=describe_device(subject.load().device) if subject.load else "cpu",
                dtype=subject.dtype,
                hashes=measurement.hashes,
                wall_time_s=found.seconds,
                items=found.items,
                token_budget=found.token_budget,
                given=self._given,
            ),
        )

    def _measure(self, measurement: Measurement, advance: Advance | None) -> _Found:
        subject, data = measurement.subject, measurement.data
        if subject.load is None:
            run = data.candidates if measurement.task == "reranking" else data.first_stage_run
            scores = score_run(data.collection.qrels, run)
            return _Found(run, scores, first_stage=scores if data.first_stage_is_ordered else None)
        if measurement.task == "reranking":
            return self._rerank(measurement, subject.load(), advance)
        evaluation = subject.experiment.evaluation
        embedded = evaluate_embedding_collection(
            subject.load(),
            data.pooled,
            name=subject.name,
            identity=measurement.hashes | {"dtype": str(subject.dtype)},
            token_budget=evaluation.token_budget,
            batch_size=evaluation.batch_size,
            exclude_self=data.dataset.exclude_self,
            advance=advance,
        )
        model, sidecars = subject.load(), {".mteb.json": embedded.mteb_json}
        budget = measurement.token_budget(model, model.reduced_budget)
        return _Found(embedded.run, embedded.scores, embedded.texts, embedded.seconds, budget, sidecars=sidecars)

    def _rerank(self, measurement: Measurement, model: UnimodelForExp1, advance: Advance | None) -> _Found:
        data, evaluation = measurement.data, measurement.subject.experiment.evaluation
        reranked = rerank_collection(
            model,
            data.collection,
            data.candidates,
            ordered=data.first_stage_is_ordered,
            store=self._store(measurement, model),
            processes=self._processes,
            token_budget=evaluation.token_budget,
            batch_size=evaluation.batch_size,
            advance=advance,
        )
        seconds = reranked.seconds / self._processes.size
        budget = measurement.token_budget(model, reranked.reduced_budget)
        return _Found(reranked.run, reranked.scores, reranked.pairs, seconds, budget, reranked.first_stage)

    def _store(self, measurement: Measurement, model: UnimodelForExp1) -> ShardStore:
        subject, name = measurement.subject, safe_name(measurement.data.dataset.collection)
        folder = arm_dir(self.output_dir, subject.name, subject.seed) / "shards" / name
        return ShardStore(folder, measurement.fingerprint(model))

    def _write_qrels(self, data: LoadedDataset) -> None:
        """The judgments in TREC layout, so that any tool can score the runs."""
        name = safe_name(f"{data.dataset.collection}-{data.dataset.split}")
        write_qrels(self.output_dir / "qrels" / f"{name}.qrels", data.collection.qrels)

    def _run_path(self, measurement: Measurement) -> Path:
        subject, dataset = measurement.subject, measurement.data.dataset
        return run_path(self.output_dir, subject.name, subject.seed, measurement.task, dataset.collection)


def _first_stage_scores(data: LoadedDataset, found: _Found) -> FirstStageScores:
    before = found.first_stage.aggregate if found.first_stage else {}
    return FirstStageScores(
        aggregate=before,
        delta={metric: found.scores.aggregate[metric] - value for metric, value in before.items()},
        queries_without_candidates=data.queries_without_candidates,
    )
