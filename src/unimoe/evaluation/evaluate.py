"""Evaluates a checkpoint and the first stage beside it, as the command ``evaluate`` asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.checkpoint import Checkpoint, folder_name, read_checkpoint
from unimoe.config import Experiment
from unimoe.config.files import apply_overrides
from unimoe.console import Steps, stdout
from unimoe.errors import UsageError
from unimoe.evaluation.averages import print_averages, print_mteb_means
from unimoe.evaluation.engines import Engine, LocalEngine
from unimoe.evaluation.loading import Failures, load_reporting, report_dataset
from unimoe.evaluation.mteb.names import find_tasks
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.plan import print_plan
from unimoe.evaluation.planned import PlannedDataset
from unimoe.evaluation.recipes import checkpoint_recipe, named_recipe, zero_shot_recipe
from unimoe.evaluation.runner import Evaluation, Evaluator
from unimoe.evaluation.spec import result_dataset
from unimoe.evaluation.tiers import Dataset, chosen_datasets, known_tier, tier_datasets
from unimoe.io import hash_json
from unimoe.models.loader import ModelLoader
from unimoe.models.threads import settle_threads
from unimoe.results import EvalResult, Task, result_path
from unimoe.systems.named import ADDRESSES, Naming, default_experiment, is_checkpoint, named_system
from unimoe.systems.system import (
    System,
    checkpoint_loader,
    evaluation_config,
    first_stage_system,
    trained_system,
    zero_shot_system,
)

if TYPE_CHECKING:
    from mteb import AbsTask

_OUTPUTS = Path("outputs", "models")
"""Where results of models go that belong to no experiment: a folder each, since one holds one base model."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What the command was asked to evaluate.

    Attributes:
        checkpoints: none for the untrained base model, or where ``model`` names another (see ``systems.named``).
        config: settings in place of the checkpoint's or model's; required without both.
        overrides: ``key=value`` strings, for the checkpoint's or model's config where no other is given.
        datasets: collections by name, in place of the tier.
        mteb: tasks and benchmarks of MTEB by name, in place of the tier or beside ``datasets``.
        task: the one task wanted; None for all that the arm is evaluated on.
        output_dir: where results go; by default beside each checkpoint.
        threads: on a CPU; None for the faster of one and all.
        given: options given by hand, for provenance.
    """

    checkpoints: tuple[Path, ...]
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


@dataclass(frozen=True)
class Target:
    """A system that was asked for, with its settings and the folder of its results."""

    experiment: Experiment
    output_dir: Path
    load: Callable[[], System]


def run_evaluation(request: EvaluationRequest, device: torch.device, engine: Engine) -> dict[str, Path]:
    """Evaluate the systems and the first stage; print scores and result files on stdout.

    Returns:
        The systems' result files by ``task/dataset``, of several systems those of the last; none in a process that does
        not lead.

    Raises:
        MissingPartError: everything is done except collections and tasks that failed.
        UnimoeError: a checkpoint or config cannot be used, or nothing could be evaluated.
    """
    targets = _targets(request, device, engine)
    experiment = targets[0].experiment
    if not engine.leads:
        if len(targets) > 1:
            raise UsageError("processes of torchrun share one checkpoint's work; use --engine ray for several")
        engine.serve(lambda: targets[0].load().model())
        return {}
    datasets, mteb_tasks = _asked(request, experiment)
    failures, arms = Failures(), [_Arm(target, request, engine) for target in targets]
    suites = [MTEBSuite(arm.evaluator, arm.system, _wanted(arm.system, request.task), failures) for arm in arms]
    for suite in suites:
        suite.report_left_out(mteb_tasks, alone=not datasets)
    in_mteb = [[(task, one) for one in mteb_tasks for task in suite.tasks_on(one)] for suite in suites]
    first_stages = {arm.output_dir: arm for arm in reversed(arms)}.values()
    systems = [*((arm.evaluator, first_stage_system(arm.system.experiment)) for arm in first_stages)]
    systems += [(arm.evaluator, arm.system) for arm in arms]
    per_dataset = sum(len(_on_collections(system, request)) for _, system in systems)
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
                    for evaluation in evaluator.evaluations(system, data, _on_collections(system, request)):
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
        _refuse_untrained_task(self.system, request.task)

    def load_early(
        self,
        datasets: Sequence[Dataset],
        in_mteb: Sequence[tuple[Task, AbsTask]],
        request: EvaluationRequest,
    ) -> None:
        """Load the model where a result is missing: if it cannot be, that shows before hours of first stages."""
        system = self.system
        names = [(task, result_dataset(task, data)) for data in datasets for task in _on_collections(system, request)]
        names += [(task, one.metadata.name) for task, one in in_mteb]
        places = [result_path(self.output_dir, system.name, system.seed, task, name) for task, name in names]
        if system.load is not None and not all(place.exists() for place in places):
            settle_threads(getattr(system.load(), "model", None), request.threads)


def plan_evaluation(request: EvaluationRequest, device: torch.device, price_per_hour: float | None) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model.

    Raises:
        MissingPartError: the plan leaves out collections that cannot be loaded.
        UnimoeError: the checkpoint or config cannot be used.
    """
    (target, *others) = _targets(request, device, LocalEngine())
    if others:
        raise UsageError("--plan counts one checkpoint's work; name one, the others take as long")
    experiment, failures, system = target.experiment, Failures(), target.load()
    _refuse_untrained_task(system, request.task)
    settle_threads(getattr(system.model(), "model", None), request.threads)
    datasets, mteb_tasks = _asked(request, experiment)
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


def _asked(request: EvaluationRequest, experiment: Experiment) -> tuple[list[Dataset], list[AbsTask]]:
    """Return the collections and the tasks of MTEB that the user named, or those of the tier."""
    datasets, mteb_tasks = _datasets(request, experiment), _mteb_tasks(request)
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys(dataset.name for dataset in datasets)
    return datasets, mteb_tasks


def _datasets(request: EvaluationRequest, experiment: Experiment) -> list[Dataset]:
    if request.datasets:
        return chosen_datasets(experiment, request.datasets, request.max_queries)
    return [] if request.mteb else tier_datasets(experiment, known_tier(request.tier), request.max_queries)


def _in_full_tier(request: EvaluationRequest) -> bool:
    return request.tier == "full" and not request.datasets and not request.mteb


def _mteb_tasks(request: EvaluationRequest) -> list[AbsTask]:
    names = request.mteb or (("full",) if _in_full_tier(request) and request.task != "reranking" else ())
    if not names:
        return []
    if request.max_queries is not None and request.mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --datasets")
    return find_tasks(names)


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


def _label(result: EvalResult) -> str:
    return result.config_name if result.seed is None else f"{result.config_name}, seed {result.seed}"


def _targets(request: EvaluationRequest, device: torch.device, engine: Engine) -> list[Target]:
    """Return the systems that were asked for.

    Raises:
        UsageError: checkpoints differ in how they would be evaluated.
    """
    if request.model is not None and not is_checkpoint(request.model):
        return [_named(request.model, request, device, engine)]
    folders = request.checkpoints if request.model is None else (Path(request.model),)
    if not folders:
        return [_zero_shot(request, device, engine)]
    loaders: dict[str, ModelLoader] = {}
    targets = [_trained(folder, request, device, loaders) for folder in folders]
    for folder, target in zip(folders, targets, strict=True):
        if target.experiment.evaluation != targets[0].experiment.evaluation:
            raise UsageError(
                f"{folder} was trained with other evaluation settings than {folders[0]}; give --config for all of them"
            )
    return targets


def _zero_shot(request: EvaluationRequest, device: torch.device, engine: Engine) -> Target:
    if request.config is None:
        raise UsageError("--zero-shot needs --config, which names the base model")
    config = request.config
    loader = ModelLoader(config, device, engine.dtype(device, config.model.dtype))
    recipe = zero_shot_recipe(config, loader.dtype)
    return Target(
        config,
        request.output_dir or Path(config.output_dir),
        lambda: replace(zero_shot_system(config, loader), recipe=recipe),
    )


def _trained(folder: Path, request: EvaluationRequest, device: torch.device, loaders: dict[str, ModelLoader]) -> Target:
    """Return a checkpoint; those on one base share its loader of ``loaders``, and so its weights."""
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    made = checkpoint_loader(experiment, checkpoint, device)
    settings = experiment.model_dump(include={"model", "prompt", "lora", "evaluation"})
    loader = loaders.setdefault(hash_json([settings, made.dtype_name]), made)
    return Target(
        experiment,
        request.output_dir or _experiment_folder(folder, checkpoint) or Path(experiment.output_dir),
        lambda: replace(trained_system(experiment, loader, folder), recipe=checkpoint_recipe(experiment, folder)),
    )


def _named(name: str, request: EvaluationRequest, device: torch.device, engine: Engine) -> Target:
    experiment = request.config or default_experiment(name, request.overrides)
    if name.startswith(tuple(f"{scheme}:" for scheme in ADDRESSES)):
        engine.refuse_server()
    dtype = engine.dtype(device, experiment.model.dtype)
    system = named_system(name, Naming(experiment, device, dtype, request.name))
    recipe = named_recipe(experiment, name, request.name, dtype)
    system = replace(system, recipe=recipe)
    return Target(system.experiment, request.output_dir or _OUTPUTS / system.name, lambda: system)


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    return apply_overrides(checkpoint.config, overrides, source="checkpoint's config") if overrides else None


def _experiment_folder(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the experiment's folder if the checkpoint is in its usual place in one, else None."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))
    return folder.resolve().parents[2] if places == expected else None
