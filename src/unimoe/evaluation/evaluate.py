"""Evaluates systems on collections and tasks of MTEB: each task of each system once, results that exist are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.checks import lines
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.grouping import gathered
from unimoe.data.catalog import load_collection
from unimoe.data.published import CQADUPSTACK
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.datasets import Dataset, Failures, LoadedDataset, load_reporting, report_checks
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.spec import Evaluation, Outcome, Work
from unimoe.evaluation.store import ResultStore, refuse_other_experiments
from unimoe.evaluation.system import BM25, System, first_stage_system
from unimoe.evaluation.tasks import embed, mteb, rerank, search
from unimoe.evaluation.tasks.search import Searches, dense_collection
from unimoe.metrics.scoring import dataset_group, suite_averages
from unimoe.models.embedder import Advance
from unimoe.results import EvalResult, Task, result_path

if TYPE_CHECKING:
    from mteb import AbsTask

Result = tuple[System, EvalResult]
Loaded = LoadedDataset | Searches

_MTEB_AT_ONCE = 8
"""Tasks of MTEB under way together on a cluster: the driver holds the data of those that rank documents."""


class Evaluator:
    """Runs evaluations that lack results; ``given`` are command-line overrides, which results record."""

    def __init__(self, given: Sequence[str] = (), engine: Engine | None = None) -> None:
        self._given, self.engine = given, engine or Engine()

    def store(self, evaluation: Evaluation) -> ResultStore:
        """Return the store of an evaluation's result."""
        return ResultStore(evaluation.system.results_dir, self._given)

    def take(self, evaluation: Evaluation, steps: Steps, metric: str | None = None) -> EvalResult:
        """Run one evaluation as a step of several; a result of its very spec that exists is kept.

        The step shows ``metric``, by default the main one.
        """
        store, title = self.store(evaluation), evaluation.about.title
        if store.is_done(evaluation):
            steps.skip(title)
            store.clear_unfinished(evaluation)  # of a run that was killed right after the result
            return store.read(evaluation)
        with store.alone(evaluation), steps.step(title, evaluation.size) as step:
            with self.engine.noted(title, evaluation.size):
                store.refuse_taken(evaluation)
                outcome = self._outcome(evaluation, step.advance)
                result = store.write(evaluation, outcome)
            shown = metric or result.main_metric
            step.outcome = f"{shown} {result.aggregate[shown]:.4f}"
        for note in (*outcome.notes, *lines(outcome.scores.checks, "caveat")):
            stderr.print(note, style="dim", soft_wrap=True)
        return result

    def evaluated(self, evaluation: Evaluation, advance: Advance) -> EvalResult:
        """Return the result of an evaluation, which runs unless it exists."""
        return self.store(evaluation).evaluated(evaluation, lambda: self._outcome(evaluation, advance))

    def _outcome(self, evaluation: Evaluation, advance: Advance) -> Outcome:
        system, reusable = evaluation.system, evaluation.reusable
        if evaluation.run is None:
            raise ValueError(f"{evaluation.about.title}: its outcome comes from elsewhere")
        identity = evaluation.fingerprint if reusable else None
        model = system.model and self.engine.model(system, evaluation.about.title, identity)
        # What a killed evaluation finds again; shards that workers score are in the cluster's store.
        keeps = reusable and not (evaluation.about.task == "reranking" and self.engine.remote)
        folder = self.store(evaluation).unfinished(evaluation) if keeps else None
        before = dict(system.model.usage) if system.model else {}
        outcome = evaluation.run(evaluation, Work(model, self.engine, folder, advance))
        if outcome.usage or system.model is None:  # a reranked collection's has what stored shards were paid too
            return outcome
        return replace(outcome, usage={name: n - before.get(name, 0.0) for name, n in system.model.usage.items()})


def evaluations(system: System, data: Loaded, tasks: Sequence[Task] | None = None) -> Iterator[Evaluation]:
    """Yield the evaluations of a system on a dataset: of every task, or of those that are wanted.

    A first stage that gives no order has none.
    """
    if isinstance(data, Searches):
        yield search.describe(system, data)
    elif system.model is not None or data.first_stage.ordered:
        stage = data.dataset.settings.first_stage
        alone = BM25 if stage == "bm25s" else stage
        on_stage = replace(system, name=f"{system.name}@{stage}" if system.model else alone)
        for task in system.tasks if tasks is None else tasks:
            if task == "embedding":  # which needs no candidates
                yield embed.describe(system, task, data)
            else:
                yield rerank.describe(on_stage if data.dataset.named else system, task, data)


class Driver:
    """Evaluates systems one dataset after the other; one that fails does not stop the others.

    Attributes:
        failures: the collections and tasks of MTEB without a score.
    """

    def __init__(self, systems: Sequence[System], data: ChosenData, engine: Engine, given: Sequence[str] = ()) -> None:
        self.failures, self._systems, self._data, self._engine = Failures(), systems, data, engine
        self.evaluator = Evaluator(given, engine)
        self._said = set[str]()  # by who set them, or loaded the model
        for system in systems:
            self._said |= {*system.experiment.caveats}
            if system.model is not None:
                self._said |= {*system.model.caveats}
                data.report_left_out(system)
        parts = sum(len(data.tasks(system)) for system in systems) * len(data.datasets)
        parts += sum(len(data.tasks(system, task)) for system in systems for task in data.mteb)
        self._steps = Steps(parts, bars=not engine.remote)

    def on_collections(self, load: Callable[[Dataset], Loaded], at_once: int) -> list[Result]:
        """Evaluate on every collection, and print a line for each result.

        ``load`` returns a dataset's data, for which the evaluations are made. Where the engine has workers elsewhere,
        ``at_once`` evaluations are under way together.
        """
        found: list[Result] = []

        def take(name: str, system: System, evaluation: Evaluation) -> None:
            with self.failures.kept(name):
                found.append(self._taken(system, evaluation))

        def jobs() -> Iterator[Callable[[], None]]:
            for dataset in self._data.datasets:
                with self.failures.kept(dataset.name):
                    data = load(dataset)
                    self._said |= {check.line for check in data.checks}  # which loading has reported
                    for system in self._systems:
                        for evaluation in evaluations(system, data, self._data.tasks(system)):
                            yield partial(take, dataset.name, system, evaluation)

        self._engine.run(jobs(), at_once)
        return found

    def on_mteb(self) -> list[Result]:
        """Evaluate on every task of MTEB, and print a line for each result, and each system's means.

        Tasks are taken one after the other, so that the data of one is in memory; on a cluster a few at a time.
        """
        found: dict[str, list[Result]] = {task.metadata.name: [] for task in self._data.mteb}

        def take(mteb_task: AbsTask) -> None:
            given, name = mteb_task.data_loaded, mteb_task.metadata.name
            with self.failures.kept(name, "MTEB task"):
                for system, evaluation in self._ready(mteb_task):
                    with self.failures.kept(name, "MTEB task"):
                        found[name].append(self._taken(system, evaluation))
            if mteb_task.data_loaded and not given:
                mteb_task.unload_data()  # the next one may need the memory

        self._engine.run((partial(take, task) for task in self._data.mteb), _MTEB_AT_ONCE)
        results = [result for of_task in found.values() for result in of_task]
        _print_by_arm(results, print_mteb_means)
        return results

    def _ready(self, mteb_task: AbsTask) -> list[tuple[System, Evaluation]]:
        """Return the evaluations on a task of MTEB, and load its data if one of them has to be run."""
        ready = mteb.task_at_hand(mteb_task) or mteb_task
        parts = [
            (system, mteb.describe(system, task, ready))
            for system in self._systems
            for task in self._data.tasks(system, mteb_task)
        ]
        missing = not all(self.evaluator.store(evaluation).is_done(evaluation) for _, evaluation in parts)
        if missing and self._engine.reads(mteb_task):
            mteb.load_from_hub(ready)
        return parts

    def _taken(self, system: System, evaluation: Evaluation) -> Result:
        result = self.evaluator.take(evaluation, self._steps)
        _print_result(result, system)
        lines_of = ((line, f"{result.config_name} on {result.dataset}: {line}") for line in result.caveats)
        new = {said: None for line, said in lines_of if not {line, said} & self._said}
        self._said |= {*new}
        for said in new:
            stderr.print(f"caveat: {said}", style="yellow", soft_wrap=True)
        return system, result


def run_evaluation(
    systems: Sequence[System], data: ChosenData, device: torch.device, engine: Engine, given: Sequence[str] = ()
) -> dict[str, Path]:
    """Evaluate systems and the first stage; print scores, averages and result files on stdout.

    Returns:
        The systems' result files by ``task/dataset``, of several systems those of the last.
    """
    by_folder = {system.results_dir: system for system in reversed(systems)}
    first_stages = [
        replace(first_stage_system(system.experiment), output_dir=folder) for folder, system in by_folder.items()
    ]
    driver = Driver([*first_stages, *systems], data, engine, given)
    at_once = 2 * (len(first_stages) + len(systems))
    everything = driver.on_collections(lambda dataset: load_reporting(dataset, device), at_once)
    found = [(system, result) for system, result in everything if system.model is not None]
    _print_by_arm(found, print_averages)
    found += driver.on_mteb()
    driver.failures.refuse(done=bool(found or data.mteb))
    return {result.key: _path(result, systems[-1]) for _, result in found}


def run_retrieval(
    systems: Sequence[System], datasets: Sequence[Dataset], engine: Engine, given: Sequence[str] = ()
) -> tuple[list[str], Failures]:
    """Let systems search every collection; print a line for each result on stdout.

    Returns:
        What was searched by all of them, as ``task/dataset``, and what could not be.
    """
    driver = Driver(systems, ChosenData(list(datasets)), engine, given)
    retriever = systems[1]
    refuse_other_experiments(retriever)

    def load(dataset: Dataset) -> Searches:
        collection = load_collection(dataset.collection, dataset.split)
        data = dense_collection(dataset, collection, retriever.dense.retrieval)
        report_checks(dataset, collection, data.checks)
        for system in systems:  # all of them before the first is searched
            evaluation = search.describe(system, data)
            driver.evaluator.store(evaluation).refuse_taken(evaluation)
        return data

    found = driver.on_collections(load, at_once=1)
    keys = [result.key for _, result in found if result.dataset not in driver.failures.names["collection"]]
    return list(dict.fromkeys(keys)), driver.failures


def _print_result(result: EvalResult, system: System) -> None:
    """Print a line about a result: the metrics of its kind, the first stage's and what reranking adds, file."""
    metric, beside = result.main_metric, ""
    shown = [metric, *(name for name in result.aggregate if name.startswith("recall_of_retrieved@"))]
    if result.first_stage and metric in result.first_stage.delta and system.model:
        before, delta = result.first_stage.aggregate[metric], result.first_stage.delta[metric]
        beside = f" (first stage {before:.4f}, {delta:+.4f})"
    scores = ", ".join(f"{name} {result.aggregate[name]:.4f}" for name in shown)
    stdout.print(f"{result.key} {result.config_name}: {scores}{beside}  {_path(result, system)}", soft_wrap=True)


def _path(result: EvalResult, system: System) -> Path:
    return result_path(system.results_dir, result.config_name, result.seed, result.task, result.dataset)


def _print_by_arm(found: Sequence[Result], print_means: Callable[[Sequence[EvalResult]], None]) -> None:
    """Print the means of each arm and seed, below its name where there are several."""
    seeds = ("" if result.seed is None else f", seed {result.seed}" for _, result in found)
    by_arm = gathered((f"{result.config_name}{seed}", result) for (_, result), seed in zip(found, seeds, strict=True))
    for label, results in sorted(by_arm.items()):
        if len(by_arm) > 1:
            stdout.print(f"{label}:", soft_wrap=True)
        print_means(results)


def print_averages(results: Sequence[EvalResult]) -> None:
    """Print the averages of each task with more than one dataset; CQADupStack counts once.

    Where some sets have another main metric, as MS MARCO has, nDCG@10 is averaged without them and with them: the field
    reports both.
    """
    for task in sorted({result.task for result in results}):
        of_task = [result for result in results if result.task == task]
        main = {result.dataset: result.main_metric for result in of_task}
        if len(main) < 2:
            continue
        _print_average(task, of_task, main, "")
        others = [dataset for dataset, metric in main.items() if metric != "ndcg@10"]
        if 0 < len(others) < len(main) and all("ndcg@10" in result.aggregate for result in of_task):
            _print_average(task, of_task, dict.fromkeys(main, "ndcg@10"), f", {' and '.join(others)} included")


def _print_average(task: Task, results: Sequence[EvalResult], metrics: Mapping[str, str], what: str) -> None:
    after = suite_averages(metrics, {result.dataset: result.aggregate for result in results})
    before = suite_averages(metrics, {r.dataset: r.first_stage.aggregate for r in results if r.first_stage})
    for metric, value in after.items():
        sets = [dataset_group(dataset) for dataset, own in metrics.items() if own == metric]
        parts = sets.count("cqadupstack")
        some = f" (cqadupstack: {parts} of its {len(CQADUPSTACK)})" if 0 < parts < len(CQADUPSTACK) else ""
        beside = f" (first stage {before[metric]:.4f}, {value - before[metric]:+.4f})" if metric in before else ""
        stdout.print(f"{task} average of {len(set(sets))}{what}: {metric} {value:.4f}{beside}{some}", soft_wrap=True)


def print_mteb_means(results: Sequence[EvalResult]) -> None:
    """Print MTEB's means over tasks: of all main scores, of the types' means, and of each type."""
    for task in sorted({result.task for result in results}):
        scores = [
            (str(result.task_type), result.aggregate.get("main_score", result.aggregate[result.main_metric]))
            for result in results
            if result.task == task
        ]
        if len(scores) < 2:
            continue
        means, kinds = mteb.mean_by_type(scores), [kind for kind, _ in scores]
        stdout.print(
            f"{task} in MTEB: Mean (Task) {math.fsum(score for _, score in scores) / len(scores):.4f} of "
            f"{len(scores)} tasks, Mean (TaskType) {math.fsum(means.values()) / len(means):.4f}: "
            + ", ".join(f"{kind} {mean:.4f} ({kinds.count(kind)})" for kind, mean in means.items()),
            soft_wrap=True,
        )
