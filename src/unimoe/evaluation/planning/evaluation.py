"""Plans what the command ``evaluate`` is asked, in place of doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from unimoe.core.errors import UsageError
from unimoe.evaluation.engines import LocalEngine
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.planning.dataset import PlannedDataset
from unimoe.evaluation.planning.plan import print_plan
from unimoe.evaluation.request import EvaluationRequest, asked, on_collections, refuse_untrained_task, targets, wanted
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.evaluation.tiers.loading import Failures, report_dataset
from unimoe.models.device import use_threads


def plan_evaluation(request: EvaluationRequest, device: torch.device, price_per_hour: float | None) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model.

    Raises:
        MissingPartError: the plan leaves out collections that cannot be loaded.
        UnimoeError: the checkpoint or config cannot be used.
    """
    (target, *others) = targets(request, device, LocalEngine())
    if others:
        raise UsageError("--plan counts one checkpoint's work; name one, the others take as long")
    experiment, failures, system = target.experiment, Failures(), target.load()
    refuse_untrained_task(system, request.task)
    use_threads(request.threads)
    datasets, mteb_tasks = asked(request, experiment)
    suite = MTEBSuite(Evaluator(Path()), system, wanted(system, request.task), failures)
    suite.report_left_out(mteb_tasks, alone=not datasets)
    in_mteb = [(task, one) for one in mteb_tasks for task in suite.tasks_on(one)]
    print_plan(system, _planned(datasets, device, failures), on_collections(system, request), price_per_hour, in_mteb)
    failures.refuse(done=True)


def _planned(datasets: Iterable[Dataset], device: torch.device, failures: Failures) -> Iterator[PlannedDataset]:
    """Yield each dataset that can be loaded, when its turn comes."""
    for dataset in datasets:
        with failures.kept(dataset.name):
            data = PlannedDataset(dataset, device)
            report_dataset(data)
            yield data
