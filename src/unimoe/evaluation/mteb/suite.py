"""Evaluates a system on tasks of MTEB one after the other; a task that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unimoe.console import Steps, stderr
from unimoe.evaluation.embedding_eval import RERANKING_TYPES, failure_reason
from unimoe.evaluation.mteb.run import load_from_hub, task_at_hand
from unimoe.evaluation.runner import Evaluation, Evaluator
from unimoe.evaluation.systems import System
from unimoe.results import EvalResult, Task

if TYPE_CHECKING:
    from mteb import AbsTask


class MTEBSuite:
    """Evaluates one system on tasks of MTEB.

    Args:
        evaluator: runs the evaluations and writes results.
        system: the system to evaluate.
        wanted: the tasks of ours that were asked for.

    Attributes:
        failures: a line for each evaluation that failed.
    """

    def __init__(self, evaluator: Evaluator, system: System, wanted: Sequence[Task]) -> None:
        self._evaluator, self._system, self._wanted = evaluator, system, wanted
        self.failures: list[str] = []

    def tasks_on(self, mteb_task: AbsTask) -> list[Task]:
        """Return how to evaluate a task: by embedding, and by reranking too if the task comes with candidates."""
        reranks = mteb_task.metadata.type in RERANKING_TYPES
        return [task for task in self._wanted if task == "embedding" or (task == "reranking" and reranks)]

    def run(self, mteb_tasks: Sequence[AbsTask], steps: Steps) -> list[EvalResult]:
        """Run every evaluation whose result does not exist yet; what fails is named on stderr and listed.

        Args:
            mteb_tasks: one after the other, so that one at a time is in memory.
            steps: numbers the evaluations on stderr.

        Returns:
            The results of all evaluations that did not fail.
        """
        results = []
        for mteb_task in mteb_tasks:
            given = mteb_task.data_loaded
            for evaluation in self._ready(mteb_task):
                try:
                    results.append(self._evaluator.take(evaluation, steps))
                except Exception as error:  # the other tasks are still worth having
                    self._fail(evaluation.spec.dataset, error)
            if mteb_task.data_loaded and not given:
                mteb_task.unload_data()  # the next one may need the memory
        return results

    def _ready(self, mteb_task: AbsTask) -> list[Evaluation]:
        """Return the evaluations on a task, and load its data if one of them has to be run."""
        try:
            ready = task_at_hand(mteb_task) or mteb_task
            evaluations = [self._evaluator.on_mteb_task(self._system, task, ready) for task in self.tasks_on(mteb_task)]
            if not all(self._evaluator.store.is_done(evaluation.spec) for evaluation in evaluations):
                load_from_hub(ready)
        except Exception as error:  # as above
            self._fail(mteb_task.metadata.name, error)
            return []
        return evaluations

    def _fail(self, name: str, error: Exception) -> None:
        reason = failure_reason(error)
        line = reason if reason.startswith(f"{name}, ") else f"{name}: {reason}"  # errors about a text name both
        self.failures.append(line)
        stderr.print(f"failed: {line}", style="yellow", soft_wrap=True)
