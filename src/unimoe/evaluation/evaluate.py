"""Evaluates a checkpoint and the first stage beside it, as the command ``evaluate`` asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.checkpoint import Checkpoint, folder_name, read_checkpoint
from unimoe.config import Experiment
from unimoe.config.files import apply_overrides
from unimoe.console import Steps, stdout
from unimoe.errors import UsageError
from unimoe.evaluation.averages import print_averages, print_mteb_means
from unimoe.evaluation.loading import Failures, load_reporting, report_dataset
from unimoe.evaluation.mteb.names import find_tasks
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.named import ADDRESSES, Naming, default_experiment, is_checkpoint, named_system
from unimoe.evaluation.plan import print_plan
from unimoe.evaluation.planned import PlannedDataset
from unimoe.evaluation.runner import Evaluator, serve_model
from unimoe.evaluation.spec import result_dataset
from unimoe.evaluation.systems import (
    System,
    checkpoint_loader,
    evaluation_config,
    first_stage_system,
    refuse_several,
    trained_system,
    zero_shot_system,
)
from unimoe.evaluation.tiers import Dataset, chosen_datasets, known_tier, tier_datasets
from unimoe.models.device import choose_dtype
from unimoe.models.loader import ModelLoader
from unimoe.models.threads import settle_threads
from unimoe.processes import ALONE, Processes
from unimoe.results import EvalResult, Task, result_path

if TYPE_CHECKING:
    from mteb import AbsTask

_OUTPUTS = Path("outputs", "models")
"""Where results of models go that belong to no experiment: a folder each, since one holds one base model."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What the command was asked to evaluate.

    Attributes:
        checkpoint: a checkpoint folder; None for the untrained base model, or where ``model`` names another.
        model: any model by name; see ``evaluation.named``.
        name: of that model in results; None for one made of its own.
        config: settings in place of the checkpoint's or model's; required without both.
        overrides: ``key=value`` strings, for the checkpoint's or model's config where no other is given.
        tier: ``bundled``, ``fast``, ``nano`` or ``full``.
        datasets: collections by name, in place of the tier.
        mteb: tasks and benchmarks of MTEB by name, in place of the tier or beside ``datasets``.
        task: the one task wanted; None for all that the arm is evaluated on.
        max_queries: queries of each dataset, at most.
        output_dir: where results go; by default beside the checkpoint.
        threads: on a CPU; None for the faster of one and all.
        given: options given by hand, for provenance.
    """

    checkpoint: Path | None
    model: str | None
    name: str | None
    config: Experiment | None
    overrides: tuple[str, ...]
    tier: str
    datasets: tuple[str, ...]
    mteb: tuple[str, ...]
    task: Task | None
    max_queries: int | None
    output_dir: Path | None
    threads: int | None
    given: list[str]


def run_evaluation(request: EvaluationRequest, device: torch.device, processes: Processes) -> dict[str, Path]:
    """Evaluate the arm and the first stage; print scores and result files on stdout.

    Returns:
        The arm's result files by ``task/dataset``; none in a process that does not lead.

    Raises:
        MissingPartError: everything is done except collections and tasks that failed.
        UnimoeError: the checkpoint or config cannot be used, or nothing could be evaluated.
    """
    experiment, output_dir, load_system = _resolved(request, device, processes)
    if not processes.leads:
        serve_model(processes, load_system)
        return {}
    datasets, mteb_tasks = _datasets(request, experiment), _mteb_tasks(request, experiment)
    evaluator, failures = Evaluator(output_dir, request.given, processes), Failures()
    arm = load_system()
    systems = [first_stage_system(experiment), arm]
    _refuse_untrained_task(arm, request.task)
    suite = MTEBSuite(evaluator, arm, _wanted(arm, request.task), failures)
    suite.report_left_out(mteb_tasks, alone=not datasets)
    in_mteb = [(task, one) for one in mteb_tasks for task in suite.tasks_on(one)]
    steps = Steps(sum(len(_on_collections(system, request)) for system in systems) * len(datasets) + len(in_mteb))
    results: list[EvalResult] = []  # of the arm
    _load_early(arm, output_dir, datasets, in_mteb, request)
    for dataset in datasets:
        with failures.kept(dataset.name):
            data = load_reporting(dataset, device)
            for system in systems:
                for evaluation in evaluator.evaluations(system, data, _on_collections(system, request)):
                    with failures.kept(dataset.name):
                        result = evaluator.take(evaluation, steps)
                        _print_result(result, output_dir, system)
                        if system is arm:
                            results.append(result)
    print_averages(results)
    in_suite = suite.run(mteb_tasks, steps)
    for result in in_suite:
        _print_result(result, output_dir, arm)
    print_mteb_means(in_suite)
    failures.refuse(done=bool(results or mteb_tasks))
    return {
        one.key: result_path(output_dir, one.config_name, one.seed, one.task, one.dataset)
        for one in [*results, *in_suite]
    }


def plan_evaluation(request: EvaluationRequest, device: torch.device, price_per_hour: float | None) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model.

    Raises:
        MissingPartError: the plan leaves out collections that cannot be loaded.
        UnimoeError: the checkpoint or config cannot be used.
    """
    experiment, _, load_system = _resolved(request, device)
    failures, system = Failures(), load_system()
    _refuse_untrained_task(system, request.task)
    settle_threads(getattr(system.model(), "model", None), request.threads)
    datasets, mteb_tasks = _datasets(request, experiment), _mteb_tasks(request, experiment)
    suite = MTEBSuite(Evaluator(Path()), system, _wanted(system, request.task), failures)
    suite.report_left_out(mteb_tasks, alone=not datasets)
    in_mteb = [(task, one) for one in mteb_tasks for task in suite.tasks_on(one)]
    print_plan(system, _planned(datasets, device, failures), _on_collections(system, request), price_per_hour, in_mteb)
    failures.refuse(done=True)


def _planned(datasets: Iterable[Dataset], device: torch.device, failures: Failures) -> Iterator[PlannedDataset]:
    """Yield each dataset that can be loaded, when its turn comes."""
    for dataset in datasets:
        with failures.kept(dataset.name):
            data = PlannedDataset(dataset, device)
            report_dataset(data)
            yield data


def _load_early(
    arm: System,
    output_dir: Path,
    datasets: Sequence[Dataset],
    in_mteb: Sequence[tuple[Task, AbsTask]],
    request: EvaluationRequest,
) -> None:
    """Load the model where a result is missing: if it cannot be loaded, that shows before hours of first stages."""
    names = [(task, result_dataset(task, data)) for data in datasets for task in _on_collections(arm, request)]
    names += [(task, one.metadata.name) for task, one in in_mteb]
    places = [result_path(output_dir, arm.name, arm.seed, task, name) for task, name in names]
    if arm.load is not None and not all(place.exists() for place in places):
        settle_threads(getattr(arm.load(), "model", None), request.threads)


def _datasets(request: EvaluationRequest, experiment: Experiment) -> list[Dataset]:
    if request.datasets:
        return chosen_datasets(experiment, request.datasets, request.max_queries)
    return [] if request.mteb else tier_datasets(experiment, known_tier(request.tier), request.max_queries)


def _in_full_tier(request: EvaluationRequest) -> bool:
    return request.tier == "full" and not request.datasets and not request.mteb


def _mteb_tasks(request: EvaluationRequest, experiment: Experiment) -> list[AbsTask]:
    """Return the tasks of MTEB that the user named, or those of the full tier."""
    names = request.mteb or (("full",) if _in_full_tier(request) and request.task != "reranking" else ())
    if not names:
        return []
    if request.max_queries is not None and request.mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --datasets")
    tasks = find_tasks(names)
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys()
    return tasks


def _on_collections(system: System, request: EvaluationRequest) -> Sequence[Task]:
    """Return the tasks to evaluate on collections; in the full tier MTEB(eng, v2) evaluates embeddings."""
    wanted = _wanted(system, request.task)
    return [task for task in wanted if task != "embedding"] if _in_full_tier(request) else wanted


def _refuse_untrained_task(system: System, task: Task | None) -> None:
    if task is not None and task not in system.tasks:
        did = "was trained for" if system.checkpoint else "does"
        raise UsageError(f"--task {task}: {system.name} {did} {', '.join(system.tasks)} only; leave it out")


def _wanted(system: System, task: Task | None) -> Sequence[Task]:
    """Return a system's tasks that the user asked for; embeddings are compared with the first stage's retrieval."""
    if task is None:
        return system.tasks
    return [own for own in system.tasks if own == task or (own, task) == ("retrieval", "embedding")]


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


def _resolved(
    request: EvaluationRequest, device: torch.device, processes: Processes = ALONE
) -> tuple[Experiment, Path, Callable[[], System]]:
    """Return the configuration, the output folder, and a function that loads the arm."""
    if request.model is not None and not is_checkpoint(request.model):
        return _named(request.model, request, device, processes)
    folder = request.checkpoint if request.model is None else Path(request.model)
    if folder is None:
        if request.config is None:
            raise UsageError("--zero-shot needs --config, which names the base model")
        config = request.config
        loader = ModelLoader(config, device, processes.leaders_dtype(choose_dtype(device, config.model.dtype)))
        output_dir = request.output_dir or Path(config.output_dir)
        return config, output_dir, lambda: zero_shot_system(config, loader)
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    loader = checkpoint_loader(experiment, checkpoint, device)
    output_dir = request.output_dir or _experiment_folder(folder, checkpoint) or Path(experiment.output_dir)
    return experiment, output_dir, lambda: trained_system(experiment, loader, folder)


def _named(
    name: str, request: EvaluationRequest, device: torch.device, processes: Processes
) -> tuple[Experiment, Path, Callable[[], System]]:
    experiment = request.config or default_experiment(name, request.overrides)
    if name.startswith(tuple(f"{scheme}:" for scheme in ADDRESSES)):
        refuse_several(processes)
    dtype = processes.leaders_dtype(choose_dtype(device, experiment.model.dtype))
    system = named_system(name, Naming(experiment, device, dtype, request.name))
    return system.experiment, request.output_dir or _OUTPUTS / system.name, lambda: system


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    return apply_overrides(checkpoint.config, overrides, source="checkpoint's config") if overrides else None


def _experiment_folder(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the experiment's folder if the checkpoint is in its usual place in one, else None."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))
    return folder.resolve().parents[2] if places == expected else None
