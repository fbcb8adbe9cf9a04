"""Evaluates a system on tasks of MTEB one after the other; a task that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from unimoe.core.console import Steps, stderr
from unimoe.core.errors import UsageError
from unimoe.data.mteb_sizes import pairs_above
from unimoe.evaluation.embedding_eval import RERANKING_TYPES
from unimoe.evaluation.mteb.run import load_from_hub, task_at_hand
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.spec import Evaluation
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.loading import Failures
from unimoe.results import EvalResult, Task

if TYPE_CHECKING:
    from mteb import AbsTask


_AT_ONCE = 8
"""Tasks under way together on a cluster: the driver holds the data of those that rank documents."""


class MTEBSuite:
    """Evaluates one system on tasks of MTEB, by those tasks of ours that are wanted."""

    def __init__(self, evaluator: Evaluator, system: System, wanted: Sequence[Task], failures: Failures) -> None:
        self._evaluator, self.system, self._wanted, self.failures = evaluator, system, wanted, failures

    def tasks_on(self, mteb_task: AbsTask) -> list[Task]:
        """Return how to evaluate a task: by embedding, and by reranking too if the task comes with candidates.

        A task with more pairs than ``evaluation.mteb.max_pairs`` is not reranked.
        """
        limit = self.system.experiment.evaluation.mteb.max_pairs
        reranks = _reranks(mteb_task) and pairs_above(mteb_task, limit) is None
        return [task for task in self._wanted if task == "embedding" or (task == "reranking" and reranks)]

    def report_left_out(self, mteb_tasks: Sequence[AbsTask], *, alone: bool) -> None:
        """Print on stderr the tasks that are too large to rerank.

        Args:
            mteb_tasks: the tasks that were asked for.
            alone: whether no collection is evaluated beside them.

        Raises:
            UsageError: the system can only be evaluated by reranking, and none of the tasks gives candidates; or all
                that do are too large, and nothing else is evaluated.
        """
        limit = self.system.experiment.evaluation.mteb.max_pairs
        for task in mteb_tasks if "reranking" in self._wanted else ():
            if pairs := pairs_above(task, limit):
                stderr.print(
                    f"left out: reranking {task.metadata.name}, {pairs:,} pairs, more than "
                    f"evaluation.mteb.max_pairs={limit:,}; set it to null to rerank them all",
                    style="yellow",
                    soft_wrap=True,
                )
        if not mteb_tasks or any(map(self.tasks_on, mteb_tasks)):
            return
        only = f"{self.system.name} is evaluated by reranking only"
        if not any(map(_reranks, mteb_tasks)):
            raise UsageError(
                f"{only}, and none of these tasks gives candidates to rerank; name tasks of type Reranking, or name "
                "tasks like SciFact by --datasets"
            )
        if alone:
            raise UsageError(
                f"{only}, and the tasks with candidates are left out (named above); raise evaluation.mteb.max_pairs"
            )

    def run(self, mteb_tasks: Sequence[AbsTask], steps: Steps) -> list[EvalResult]:
        """Run every evaluation whose result does not exist yet; return the results of all that did not fail.

        Tasks are taken one after the other, so that one at a time is in memory; on a cluster a few at a time.
        """
        results: dict[str, list[EvalResult]] = {task.metadata.name: [] for task in mteb_tasks}

        def take(mteb_task: AbsTask) -> None:
            given, name = mteb_task.data_loaded, mteb_task.metadata.name
            with self.failures.kept(task=name):
                for evaluation in self._ready(mteb_task):
                    with self.failures.kept(task=name):
                        results[name].append(self._evaluator.take(evaluation, steps))
            if mteb_task.data_loaded and not given:
                mteb_task.unload_data()  # the next one may need the memory

        self._evaluator.engine.run((partial(take, task) for task in mteb_tasks), _AT_ONCE)
        return [result for own in results.values() for result in own]

    def _ready(self, mteb_task: AbsTask) -> list[Evaluation]:
        """Return the evaluations on a task, and load its data if one of them has to be run."""
        ready = task_at_hand(mteb_task) or mteb_task
        evaluations = [self._evaluator.on_mteb_task(self.system, task, ready) for task in self.tasks_on(mteb_task)]
        done = all(self._evaluator.store.is_done(evaluation) for evaluation in evaluations)
        if not done and self._evaluator.needs_data(mteb_task):
            load_from_hub(ready)
        return evaluations


def _reranks(mteb_task: AbsTask) -> bool:
    return mteb_task.metadata.type in RERANKING_TYPES
