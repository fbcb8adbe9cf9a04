"""Plans what the command ``evaluate`` is asked, in place of doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from unimoe.core.errors import UsageError
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.planning.dataset import PlannedDataset
from unimoe.evaluation.planning.plan import print_plan
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.evaluation.tiers.loading import Failures, report_dataset


def plan_evaluation(
    systems: Sequence[System], data: ChosenData, device: torch.device, price_per_hour: float | None
) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model.

    Raises:
        MissingPartError: the plan leaves out collections that cannot be loaded.
        UsageError: there are several systems.
    """
    (system, *others), failures = systems, Failures()
    if others:
        raise UsageError("--plan counts one checkpoint's work; name one, the others take as long")
    suite = MTEBSuite(Evaluator(Path()), system, data.tasks(system), failures)
    suite.report_left_out(data.mteb, alone=not data.datasets)
    in_mteb = [(task, one) for one in data.mteb for task in suite.tasks_on(one)]
    planned = _planned(data.datasets, device, failures)
    print_plan(system, planned, data.tasks_on_collections(system), price_per_hour, in_mteb)
    failures.refuse(done=True)


def _planned(datasets: Iterable[Dataset], device: torch.device, failures: Failures) -> Iterator[PlannedDataset]:
    """Yield each dataset that can be loaded, when its turn comes."""
    for dataset in datasets:
        with failures.kept(dataset.name):
            data = PlannedDataset(dataset, device)
            report_dataset(data)
            yield data
