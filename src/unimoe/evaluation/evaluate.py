"""Evaluates systems and the first stage beside them, as the command ``evaluate`` asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.core.console import Steps, stdout
from unimoe.evaluation.averages import print_averages, print_mteb_means
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.request import (
    EvaluationRequest,
    Target,
    asked,
    on_collections,
    refuse_untrained_task,
    targets,
    wanted,
)
from unimoe.evaluation.runner import Evaluation, Evaluator
from unimoe.evaluation.spec import result_dataset
from unimoe.evaluation.systems.system import System, first_stage_system
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.evaluation.tiers.loading import Failures, load_reporting
from unimoe.models.device import use_threads
from unimoe.results import EvalResult, Task, result_path

if TYPE_CHECKING:
    from mteb import AbsTask


def run_evaluation(request: EvaluationRequest, device: torch.device, engine: Engine) -> dict[str, Path]:
    """Evaluate the systems and the first stage; print scores and result files on stdout.

    Returns:
        The systems' result files by ``task/dataset``, of several systems those of the last.

    Raises:
        MissingPartError: everything is done except collections and tasks that failed.
        UnimoeError: a checkpoint or config cannot be used, or nothing could be evaluated.
    """
    asked_for = targets(request, device, engine)
    experiment = asked_for[0].experiment
    datasets, mteb_tasks = asked(request, experiment)
    failures, arms = Failures(), [_Arm(target, request, engine) for target in asked_for]
    suites = [MTEBSuite(arm.evaluator, arm.system, wanted(arm.system, request.task), failures) for arm in arms]
    for suite in suites:
        suite.report_left_out(mteb_tasks, alone=not datasets)
    in_mteb = [[(task, one) for one in mteb_tasks for task in suite.tasks_on(one)] for suite in suites]
    first_stages = {arm.output_dir: arm for arm in reversed(arms)}.values()
    systems = [*((arm.evaluator, first_stage_system(arm.system.experiment)) for arm in first_stages)]
    systems += [(arm.evaluator, arm.system) for arm in arms]
    per_dataset = sum(len(on_collections(system, request)) for _, system in systems)
    steps = Steps(per_dataset * len(datasets) + sum(map(len, in_mteb)), bars=not engine.remote)
    if not engine.remote:
        for arm, tasks in zip(arms, in_mteb, strict=True):
            arm.load_early(datasets, tasks, request)
    results: dict[str, dict[int, EvalResult]] = {}  # by system, and by place in the order of the work

    def taken(evaluator: Evaluator, system: System, evaluation: Evaluation, name: str, place: int) -> None:
        with failures.kept(name):
            result = evaluator.take(evaluation, steps)
            _print_result(result, evaluator.store.output_dir, system)
            if system.load is not None:
                results.setdefault(_label(result), {})[place] = result

    def jobs() -> Iterator[Callable[[], None]]:
        places = count()
        for dataset in datasets:
            with failures.kept(dataset.name):
                data = load_reporting(dataset, device)
                for evaluator, system in systems:
                    for evaluation in evaluator.evaluations(system, data, on_collections(system, request)):
                        yield partial(taken, evaluator, system, evaluation, dataset.name, next(places))

    engine.run(jobs(), at_once=2 * len(systems))
    for label, own in sorted(results.items()):
        if len(arms) > 1:
            stdout.print(f"{label}:", soft_wrap=True)
        print_averages([result for _, result in sorted(own.items())])
    found = [result for own in results.values() for result in own.values()]
    in_suite: list[EvalResult] = []
    for arm, suite in zip(arms, suites, strict=True):
        done = suite.run(mteb_tasks, steps)
        for result in done:
            _print_result(result, arm.output_dir, arm.system)
        print_mteb_means(done)
        in_suite += done
    failures.refuse(done=bool(found or mteb_tasks))
    return {
        one.key: result_path(arms[-1].output_dir, one.config_name, one.seed, one.task, one.dataset)
        for one in [*found, *in_suite]
    }


class _Arm:
    """A system with what evaluates it."""

    def __init__(self, target: Target, request: EvaluationRequest, engine: Engine) -> None:
        self.output_dir = target.output_dir
        self.evaluator = Evaluator(target.output_dir, request.given, engine)
        self.system = target.load()
        refuse_untrained_task(self.system, request.task)

    def load_early(
        self,
        datasets: Sequence[Dataset],
        in_mteb: Sequence[tuple[Task, AbsTask]],
        request: EvaluationRequest,
    ) -> None:
        """Load the model where a result is missing: if it cannot be, that shows before hours of first stages."""
        system = self.system
        names = [(task, result_dataset(task, data)) for data in datasets for task in on_collections(system, request)]
        names += [(task, one.metadata.name) for task, one in in_mteb]
        places = [result_path(self.output_dir, system.name, system.seed, task, name) for task, name in names]
        if system.load is not None and not all(place.exists() for place in places):
            use_threads(request.threads)


def _print_result(result: EvalResult, output_dir: Path, system: System) -> None:
    """Print a line about a result: main metric, the first stage's and what reranking adds, file."""
    metric, beside = result.main_metric, ""
    if result.first_stage and metric in result.first_stage.delta and system.load:
        before, delta = result.first_stage.aggregate[metric], result.first_stage.delta[metric]
        beside = f" (first stage {before:.4f}, {delta:+.4f})"
    path = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
    stdout.print(
        f"{result.key} {result.config_name}: {metric} {result.aggregate[metric]:.4f}{beside}  {path}", soft_wrap=True
    )


def _label(result: EvalResult) -> str:
    return result.config_name if result.seed is None else f"{result.config_name}, seed {result.seed}"
