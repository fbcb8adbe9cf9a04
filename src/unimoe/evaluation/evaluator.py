"""Takes measurements, each once, and writes what they find: result, drill-down, TREC run, judgments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unimoe.evaluation.measurement import Measured, Measurement
from unimoe.evaluation.measuring import Found, measure_embedding, measure_first_stage, measure_reranking, measure_task
from unimoe.evaluation.mteb.measurement import TaskMeasurement
from unimoe.evaluation.shards import ShardStore
from unimoe.evaluation.writing import result_of, write_found
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.processes import ALONE, Processes
from unimoe.results import (
    EvalResult,
    arm_dir,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
    safe_name,
)


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

    def is_done(self, measurement: Measured) -> bool:
        """Whether the result on disk is of this very measurement: same identity, and same content hashes and dtype.

        Raises:
            DataError: the file on disk is damaged.
        """
        return self._processes.leader_says(self._processes.leads and self._is_on_disk(measurement))

    def evaluate(self, measurement: Measurement | TaskMeasurement, advance: Advance | None = None) -> EvalResult | None:
        """Measure and write; the result file comes last, so that its presence means completeness.

        Returns:
            The result; null in processes that do not lead.

        Raises:
            DataError: the place of the result is taken by another measurement, or a score is not finite.
        """
        shared = isinstance(measurement, Measurement) and measurement.task == "reranking" and measurement.subject.load
        if not self._processes.leads and not shared:
            return None
        path = self.result_path(measurement)
        if path.exists():  # before hours of scoring, and before the run beside it is touched
            refuse_other_identity(path, measurement.identity, measurement.dataset)
        if isinstance(measurement, TaskMeasurement):
            found = measure_task(measurement, measurement.model, advance)
        elif measurement.subject.load is None:
            found = measure_first_stage(measurement)
        elif measurement.task == "embedding":
            found = measure_embedding(measurement, measurement.subject.load(), advance)
        else:
            return self._rerank(measurement, measurement.subject.load(), advance)
        return self._write(measurement, found)

    def result_path(self, measurement: Measured) -> Path:
        """Where the result of a measurement lives."""
        subject = measurement.subject
        return result_path(self.output_dir, subject.name, subject.seed, measurement.task, measurement.dataset)

    def _rerank(self, measurement: Measurement, model: UnimodelForExp1, advance: Advance | None) -> EvalResult | None:
        subject = measurement.subject
        folder = arm_dir(self.output_dir, subject.name, subject.seed) / "shards" / safe_name(measurement.dataset)
        store = ShardStore(folder, measurement.fingerprint(model))
        found = measure_reranking(measurement, model, store, self._processes, advance)
        if not self._processes.leads:
            return None
        result = self._write(measurement, found)
        store.clear()
        return result

    def _is_on_disk(self, measurement: Measured) -> bool:
        path = self.result_path(measurement)
        if not path.exists():
            return False
        found = read_result(path)
        if found.per_query and not self._run_path(measurement).exists():
            return False
        return (found.identity, found.provenance.hashes, found.provenance.dtype, found.caveats) == (
            measurement.identity,
            measurement.hashes,
            measurement.subject.dtype,
            measurement.caveats,
        )

    def _write(self, measurement: Measured, found: Found) -> EvalResult:
        subject = measurement.subject
        result = result_of(
            found,
            arm=subject.name,
            seed=subject.seed,
            task=measurement.task,
            dataset=measurement.dataset,
            task_type=measurement.task_type,
            identity=measurement.identity,
            hashes=measurement.hashes,
            caveats=measurement.caveats,
            training=subject.checkpoint.training if subject.checkpoint else None,
            config=subject.experiment.model_dump(),
            device=describe_device(subject.load().device) if subject.load else "cpu",
            dtype=subject.dtype,
            given=self._given,
        )
        return write_found(self.output_dir, result, found)

    def _run_path(self, measurement: Measured) -> Path:
        subject = measurement.subject
        return run_path(self.output_dir, subject.name, subject.seed, measurement.task, measurement.dataset)
