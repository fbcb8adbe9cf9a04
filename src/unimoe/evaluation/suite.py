"""Evaluates a subject on every dataset of a tier; what cannot be had is named, and the others still run."""

from __future__ import annotations

from collections.abc import Sequence

from unimoe.console import Steps, stderr
from unimoe.data.catalog import UnavailableError
from unimoe.errors import MissingPartError
from unimoe.evaluation.evaluator import Evaluator, Subject
from unimoe.evaluation.tiers import Dataset, LoadedDataset
from unimoe.results import Task


def load_available(datasets: Sequence[Dataset]) -> tuple[list[LoadedDataset], list[str]]:
    """The datasets that can be had, and a line for each that cannot.

    Raises:
        DataError: a collection is there but malformed.
    """
    loaded, missing = [], []
    for dataset in datasets:
        try:
            loaded.append(load_reporting(dataset))
        except UnavailableError as error:
            missing.append(str(error))
            stderr.print(f"not available: {error}", style="yellow", soft_wrap=True)
    return loaded, missing


def load_reporting(dataset: Dataset) -> LoadedDataset:
    """Load a dataset and say on stderr what is odd about its collection.

    Raises:
        UnavailableError: the collection cannot be had here.
        DataError: it is malformed.
    """
    data = LoadedDataset(dataset)
    if data.problems:
        stderr.print(f"{dataset.collection}: {data.problems}", style="dim", soft_wrap=True)
    return data


def evaluate_subject(evaluator: Evaluator, subject: Subject, datasets: Sequence[LoadedDataset], steps: Steps) -> None:
    """Evaluate a subject on all its tasks; results of this very measurement that are already there are kept.

    Raises:
        DataError: a result's place is taken by another measurement, or a score is not finite.
    """
    seed = "" if subject.seed is None else f", seed {subject.seed}"
    for data in datasets:
        for task in subject.tasks:
            name = f"{task} {data.dataset.collection}: {subject.name}{seed}"
            if evaluator.is_done(subject, task, data):
                steps.skip(name)
                continue
            with steps.step(name, work_size(subject, task, data)) as step:
                result = evaluator.evaluate(subject, task, data, step.advance)
                step.outcome = f"{result.main_metric} {result.aggregate[result.main_metric]:.4f}"


def work_size(subject: Subject, task: Task, data: LoadedDataset) -> int:
    """Pairs or texts that a model has to score."""
    if subject.load is None:
        return 0
    if task == "reranking":
        return sum(map(len, data.candidates.values()))
    return len(data.pooled.corpus) + len(data.pooled.queries)


def refuse_silence(missing: Sequence[str]) -> None:
    """End with the exit code for missing parts where collections could not be had.

    Raises:
        MissingPartError: something is missing.
    """
    if missing:
        raise MissingPartError(f"done, without {len(missing)} of the tier's collections (named above)")
