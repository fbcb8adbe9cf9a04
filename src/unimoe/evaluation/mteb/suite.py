"""Takes tasks of MTEB one after the other: what one of them lacks does not keep the others from being done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unimoe.console import Steps, stderr
from unimoe.evaluation.embedding_eval import RERANKING_TYPES, why
from unimoe.evaluation.evaluator import Evaluator
from unimoe.evaluation.mteb.measurement import TaskMeasurement
from unimoe.evaluation.mteb.run import load_from_hub, task_at_hand
from unimoe.evaluation.subjects import Subject
from unimoe.evaluation.suite import take
from unimoe.results import Task

if TYPE_CHECKING:
    from mteb import AbsTask


class TaskRunner:
    """Measures one subject on tasks of MTEB.

    Args:
        evaluator: takes the measurements and writes results; of this process alone.
        subject: what is evaluated.
        wanted: the tasks of ours that were asked for.

    Attributes:
        failures: a line for each measurement that could not be taken.
    """

    def __init__(self, evaluator: Evaluator, subject: Subject, wanted: Sequence[Task]) -> None:
        self._evaluator, self._subject, self._wanted = evaluator, subject, wanted
        self.failures: list[str] = []

    def measurements(self, task: AbsTask) -> list[TaskMeasurement]:
        """What is measured on a task: embeddings, and where its candidates are given also their reranking."""
        return [
            TaskMeasurement(self._subject, ours, task)
            for ours in self._wanted
            if ours == "embedding" or (ours == "reranking" and task.metadata.type in RERANKING_TYPES)
        ]

    def run(self, tasks: Sequence[AbsTask], steps: Steps) -> list[TaskMeasurement]:
        """Take every measurement whose result is not there yet; what fails is named on stderr and listed.

        Args:
            tasks: one after the other, so that one at a time is in memory.
            steps: numbers the measurements on stderr.

        Returns:
            The measurements that have a result now.
        """
        done = []
        for task in tasks:
            given = task.data_loaded
            for measurement in self._ready(task):
                try:
                    take(self._evaluator, measurement, steps)
                    done.append(measurement)
                except Exception as error:  # whatever befalls one task, the others are still worth having
                    self._fail(measurement.dataset, error)
            if task.data_loaded and not given:
                task.unload_data()  # the next one may need the memory
        return done

    def _ready(self, task: AbsTask) -> list[TaskMeasurement]:
        """The measurements on a task, with its data where one of them has to be taken."""
        try:
            measurements = self.measurements(task_at_hand(task) or task)
            if not all(map(self._evaluator.is_done, measurements)):
                for measurement in measurements[:1]:
                    load_from_hub(measurement.mteb_task)
        except Exception as error:
            self._fail(task.metadata.name, error)
            return []
        return measurements

    def _fail(self, name: str, error: Exception) -> None:
        reason = why(error)
        line = reason if reason.startswith(f"{name}, ") else f"{name}: {reason}"  # errors about a text name both
        self.failures.append(line)
        stderr.print(f"failed: {line}", style="yellow", soft_wrap=True)
