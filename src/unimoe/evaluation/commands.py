"""What ``evaluate`` does once its options are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unimoe.checkpoint import Checkpoint, read_checkpoint
from unimoe.config import Experiment
from unimoe.config_files import apply_overrides
from unimoe.console import Steps, stdout
from unimoe.errors import UsageError
from unimoe.evaluation.evaluator import Evaluator
from unimoe.evaluation.measurement import Measurement
from unimoe.evaluation.plan import print_plan
from unimoe.evaluation.processes import Processes
from unimoe.evaluation.subjects import (
    Subject,
    evaluation_config,
    first_stage_subject,
    trained_subject,
    zero_shot_subject,
)
from unimoe.evaluation.suite import Loader, measurements, take
from unimoe.evaluation.tiers import Dataset, chosen_datasets, known_tier, tier_datasets
from unimoe.metrics import dataset_group, suite_averages
from unimoe.models.bench import ModelBench
from unimoe.models.device import choose_dtype
from unimoe.results import EvalResult, Task, read_result


@dataclass(frozen=True)
class EvaluationRequest:
    """What was asked for.

    Attributes:
        checkpoint: a checkpoint folder; null for the base model as it is.
        config: evaluation settings in place of the checkpoint's; required without a checkpoint.
        overrides: ``key=value`` strings, for the checkpoint's config where no other is given.
        tier: ``bundled``, ``fast``, ``nano`` or ``full``.
        datasets: collections by name, in place of the tier.
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
    datasets, loader = _datasets(request, experiment), Loader()
    evaluator = Evaluator(output_dir, request.given, processes)
    subjects = [first_stage_subject(experiment), subject_of()]
    _refuse_untrained_task(subjects[1], request.task)
    steps = Steps(sum(len(_wanted(subject, request.task)) for subject in subjects) * len(datasets))
    results = []
    for data in loader.available(datasets):
        for measurement in measurements(subjects, data):
            if measurement.task in _wanted(measurement.subject, request.task):
                take(evaluator, measurement, steps)
                results.append(_report(evaluator, measurement, processes))
    _report_averages([result for result in results if result and result.config_name == subjects[1].name])
    loader.refuse_silence()


def plan_evaluation(request: EvaluationRequest, device: torch.device, price_per_hour: float | None) -> None:
    """Print what ``run_evaluation`` would do and take, and run nothing but a short probe of the model.

    Raises:
        MissingPartError: the plan is without collections that cannot be had.
        UnimoeError: the checkpoint or config cannot be used.
    """
    experiment, _, subject_of = _what(request, device)
    loader, subject = Loader(), subject_of()
    _refuse_untrained_task(subject, request.task)
    print_plan(subject, loader.available(_datasets(request, experiment)), request.task, price_per_hour)
    loader.refuse_silence()


def _datasets(request: EvaluationRequest, experiment: Experiment) -> list[Dataset]:
    if request.datasets:
        return chosen_datasets(experiment, request.datasets, request.max_queries)
    return tier_datasets(experiment, known_tier(request.tier), request.max_queries)


def _refuse_untrained_task(subject: Subject, task: Task | None) -> None:
    if task is not None and task not in subject.tasks:
        raise UsageError(f"--task {task}: {subject.name} was trained for {', '.join(subject.tasks)} only; leave it out")


def _wanted(subject: Subject, task: Task | None) -> Sequence[Task]:
    """The tasks of a subject that were asked for; dense retrieval is what embeddings are compared with."""
    if task is None:
        return subject.tasks
    return [own for own in subject.tasks if own == task or (own, task) == ("retrieval", "embedding")]


def _report(evaluator: Evaluator, measurement: Measurement, processes: Processes) -> EvalResult | None:
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
        bench = ModelBench(experiment, device, choose_dtype(device, experiment.model.dtype))
        return (
            experiment,
            request.output_dir or Path(experiment.output_dir),
            lambda: zero_shot_subject(experiment, bench),
        )
    folder = request.checkpoint
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    # "auto" means what the training computed in: a score in another dtype would not be the one that was trained for.
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    bench = ModelBench(experiment, device, getattr(torch, dtype))
    output_dir = request.output_dir or _home(folder, checkpoint) or Path(experiment.output_dir)
    return experiment, output_dir, lambda: trained_subject(experiment, bench, folder)


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    return apply_overrides(checkpoint.config, overrides, source="checkpoint's config") if overrides else None


def _home(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """The experiment's folder, where the checkpoint stands in its place in one."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", "checkpoint")
    return folder.resolve().parents[2] if places == expected else None
