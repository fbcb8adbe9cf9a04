"""What ``evaluate`` does once its options are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.checkpoint import Checkpoint, folder_name, read_checkpoint
from unimoe.config import Experiment
from unimoe.config.files import apply_overrides
from unimoe.console import Steps, stdout
from unimoe.errors import UsageError
from unimoe.evaluation.evaluator import Evaluator
from unimoe.evaluation.measurement import Measured
from unimoe.evaluation.mteb.names import find_tasks
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.run import random_state_kept
from unimoe.evaluation.mteb.suite import TaskRunner
from unimoe.evaluation.plan import print_plan
from unimoe.evaluation.subjects import (
    Subject,
    evaluation_config,
    first_stage_subject,
    trained_subject,
    zero_shot_subject,
)
from unimoe.evaluation.suite import Loader, measurements, refuse_silence, take
from unimoe.evaluation.tiers import Dataset, chosen_datasets, known_tier, tier_datasets
from unimoe.metrics import dataset_group, suite_averages
from unimoe.models.device import choose_dtype
from unimoe.models.loader import ModelLoader
from unimoe.processes import Processes
from unimoe.results import EvalResult, Task, read_result

if TYPE_CHECKING:
    from mteb import AbsTask


@dataclass(frozen=True)
class EvaluationRequest:
    """What was asked for.

    Attributes:
        checkpoint: a checkpoint folder; null for the base model as it is.
        config: evaluation settings in place of the checkpoint's; required without a checkpoint.
        overrides: ``key=value`` strings, for the checkpoint's config where no other is given.
        tier: ``bundled``, ``fast``, ``nano`` or ``full``.
        datasets: collections by name, in place of the tier.
        mteb: tasks and benchmarks of MTEB by name, in place of the tier or beside ``datasets``.
        task: the one task wanted; null for all that the arm is evaluated on.
        max_queries: queries of each dataset, at most.
        output_dir: where results go; by default beside the checkpoint.
        given: for provenance.
    """

    checkpoint: Path | None
    config: Experiment | None
    overrides: tuple[str, ...]
    tier: str
    datasets: tuple[str, ...]
    mteb: tuple[str, ...]
    task: Task | None
    max_queries: int | None
    output_dir: Path | None
    given: list[str]


def run_evaluation(request: EvaluationRequest, device: torch.device, processes: Processes) -> None:
    """Evaluate the asked-for arm, and the first stage beside it; prints scores and result files on stdout.

    Raises:
        MissingPartError: all was done but for collections that cannot be had.
        UnimoeError: the checkpoint or config cannot be used.
    """
    experiment, output_dir, subject_of = _what(request, device)
    datasets, tasks = _datasets(request, experiment), _mteb_tasks(request, experiment)
    evaluator, loader = Evaluator(output_dir, request.given, processes), Loader()
    subjects = [first_stage_subject(experiment), subject_of()]
    _refuse_untrained_task(subjects[1], request.task)
    # The leader's alone: nothing of MTEB is shared between processes.
    runner = TaskRunner(Evaluator(output_dir, request.given), subjects[1], _wanted(subjects[1], request.task))
    in_mteb = _measurements_in_mteb(runner, tasks, subjects[1])
    steps = Steps(sum(len(_on_collections(subject, request)) for subject in subjects) * len(datasets) + in_mteb)
    results = []
    for data in loader.available(datasets):
        for measurement in measurements(subjects, data):
            if measurement.task in _on_collections(measurement.subject, request):
                take(evaluator, measurement, steps)
                results.append(_report(evaluator, measurement, processes))
    if processes.leads:
        results += [_report(evaluator, measurement, processes) for measurement in runner.run(tasks, steps)]
    _report_averages([result for result in results if result and result.config_name == subjects[1].name])
    refuse_silence(len(loader.missing), len(runner.failures))


def plan_evaluation(request: EvaluationRequest, device: torch.device, price_per_hour: float | None) -> None:
    """Print what ``run_evaluation`` would do and take, and run nothing but a short probe of the model.

    Raises:
        MissingPartError: the plan is without collections that cannot be had.
        UnimoeError: the checkpoint or config cannot be used.
    """
    experiment, _, subject_of = _what(request, device)
    loader, subject = Loader(), subject_of()
    _refuse_untrained_task(subject, request.task)
    tasks = _mteb_tasks(request, experiment)
    print_plan(
        subject, loader.available(_datasets(request, experiment)), _on_collections(subject, request), price_per_hour
    )
    if tasks and "embedding" in _wanted(subject, request.task):
        stdout.print(f"not counted: {len(tasks)} tasks of MTEB, whose sizes only its hub knows", soft_wrap=True)
    refuse_silence(len(loader.missing))


def _datasets(request: EvaluationRequest, experiment: Experiment) -> list[Dataset]:
    if request.datasets:
        return chosen_datasets(experiment, request.datasets, request.max_queries)
    return [] if request.mteb else tier_datasets(experiment, known_tier(request.tier), request.max_queries)


def _in_full_tier(request: EvaluationRequest) -> bool:
    return request.tier == "full" and not request.datasets and not request.mteb


def _mteb_tasks(request: EvaluationRequest, experiment: Experiment) -> list[AbsTask]:
    """The tasks of MTEB that were asked for by name, or with the full tier."""
    names = request.mteb or (("full",) if _in_full_tier(request) and request.task != "reranking" else ())
    if not names:
        return []
    if request.max_queries is not None and request.mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --datasets")
    with random_state_kept():
        tasks = find_tasks(names)
        TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys()
    return tasks


def _measurements_in_mteb(runner: TaskRunner, tasks: Sequence[AbsTask], subject: Subject) -> int:
    count = sum(len(runner.measurements(task)) for task in tasks)
    if tasks and not count and "embedding" not in subject.tasks:
        raise UsageError(f"{subject.name} was trained to rank only, and none of these tasks gives candidates to rerank")
    return count


def _on_collections(subject: Subject, request: EvaluationRequest) -> Sequence[Task]:
    """What is measured on collections: in the full tier embeddings are MTEB(eng, v2)'s to judge."""
    wanted = _wanted(subject, request.task)
    return [task for task in wanted if task != "embedding"] if _in_full_tier(request) else wanted


def _refuse_untrained_task(subject: Subject, task: Task | None) -> None:
    if task is not None and task not in subject.tasks:
        raise UsageError(f"--task {task}: {subject.name} was trained for {', '.join(subject.tasks)} only; leave it out")


def _wanted(subject: Subject, task: Task | None) -> Sequence[Task]:
    """The tasks of a subject that were asked for; dense retrieval is what embeddings are compared with."""
    if task is None:
        return subject.tasks
    return [own for own in subject.tasks if own == task or (own, task) == ("retrieval", "embedding")]


def _report(evaluator: Evaluator, measurement: Measured, processes: Processes) -> EvalResult | None:
    """One line per result: what, main metric, the first stage's and what reranking adds, where."""
    if not processes.leads:
        return None
    path = evaluator.result_path(measurement)
    result = read_result(path)
    metric = result.main_metric
    beside = ""
    if result.first_stage and metric in result.first_stage.delta and measurement.subject.load:
        before, delta = result.first_stage.aggregate[metric], result.first_stage.delta[metric]
        beside = f" (first stage {before:.4f}, {delta:+.4f})"
    stdout.print(
        f"{result.key} {result.config_name}: {metric} {result.aggregate[metric]:.4f}{beside}  {path}", soft_wrap=True
    )
    return result


def _report_averages(results: Sequence[EvalResult]) -> None:
    """The averages of a suite, where there is more than one dataset; CQADupStack counts once."""
    for task in sorted({result.task for result in results}):
        of_task = [result for result in results if result.task == task]
        main = {result.dataset: result.main_metric for result in of_task}
        if len(main) < 2:
            continue
        after = suite_averages(main, {result.dataset: result.aggregate for result in of_task})
        before = suite_averages(main, {r.dataset: r.first_stage.aggregate for r in of_task if r.first_stage})
        for metric, value in after.items():
            count = len({dataset_group(dataset) for dataset, own in main.items() if own == metric})
            beside = f" (first stage {before[metric]:.4f}, {value - before[metric]:+.4f})" if metric in before else ""
            stdout.print(f"{task} average of {count}: {metric} {value:.4f}{beside}", soft_wrap=True)


def _what(request: EvaluationRequest, device: torch.device) -> tuple[Experiment, Path, Callable[[], Subject]]:
    """The configuration, the output folder, and the arm."""
    if request.checkpoint is None:
        if request.config is None:
            raise UsageError("--zero-shot needs --config, which names the base model")
        experiment = request.config
        loader = ModelLoader(experiment, device, choose_dtype(device, experiment.model.dtype))
        return (
            experiment,
            request.output_dir or Path(experiment.output_dir),
            lambda: zero_shot_subject(experiment, loader),
        )
    folder = request.checkpoint
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    # "auto" means what the training computed in: a score in another dtype would not be the one that was trained for.
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    loader = ModelLoader(experiment, device, getattr(torch, dtype))
    output_dir = request.output_dir or _home(folder, checkpoint) or Path(experiment.output_dir)
    return experiment, output_dir, lambda: trained_subject(experiment, loader, folder)


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    return apply_overrides(checkpoint.config, overrides, source="checkpoint's config") if overrides else None


def _home(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """The experiment's folder, where the checkpoint stands in its place in one."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))
    return folder.resolve().parents[2] if places == expected else None
