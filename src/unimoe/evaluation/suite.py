"""Evaluates subjects on the datasets of a tier, one dataset after the other, so that one at a time is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unimoe.console import Steps, stderr
from unimoe.data.catalog import UnavailableError
from unimoe.errors import MissingPartError
from unimoe.evaluation.evaluator import Evaluator
from unimoe.evaluation.level_notes import collection_note
from unimoe.evaluation.measurement import Measurement
from unimoe.evaluation.mteb.measurement import TaskMeasurement
from unimoe.evaluation.subjects import Subject
from unimoe.evaluation.tiers import Dataset, LoadedDataset


class Loader:
    """Loads datasets as they are asked for.

    Attributes:
        missing: a line for each dataset that could not be had.
    """

    def __init__(self) -> None:
        self.missing: list[str] = []

    def available(self, datasets: Iterable[Dataset]) -> Iterator[LoadedDataset]:
        """The datasets that can be had, each loaded when its turn comes; the others are named on stderr.

        Raises:
            DataError: a collection is there but malformed.
        """
        for dataset in datasets:
            try:
                yield load_reporting(dataset)
            except UnavailableError as error:
                self.missing.append(str(error))
                stderr.print(f"not available: {error}", style="yellow", soft_wrap=True)


def refuse_silence(collections: int, tasks: int = 0) -> None:
    """End with the exit code for missing parts where something asked for could not be done; it was named before.

    Args:
        collections: how many could not be had.
        tasks: how many of MTEB's tasks failed.

    Raises:
        MissingPartError: something is missing.
    """
    parts = [(collections, "collections"), (tasks, "MTEB tasks")]
    missing = " and ".join(f"{count} of the {what} asked for" for count, what in parts if count)
    if missing:
        raise MissingPartError(f"done, without {missing} (named above)")


def load_reporting(dataset: Dataset) -> LoadedDataset:
    """Load a dataset and say on stderr what is odd about its collection and its candidates.

    Raises:
        UnavailableError: the collection cannot be had here.
        DataError: it is malformed.
    """
    data = LoadedDataset(dataset)
    oddities = [data.problems] if data.problems else []
    if lacking := data.queries_without_candidates:
        named = ", ".join(lacking[:3]) + ", ..." * (len(lacking) > 3)
        oddities.append(f"judged queries without any candidate, which count 0: {len(lacking):,} ({named})")
    if not data.first_stage_is_ordered:
        oddities.append(f"{data.first_stage} is in no order: no scores of its own")
    if oddities:
        stderr.print(f"{dataset.name}: {'; '.join(oddities)}", style="dim", soft_wrap=True)
    if note := collection_note(dataset.collection, data.collection):
        stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)
    return data


def measurements(subjects: Sequence[Subject], data: LoadedDataset) -> list[Measurement]:
    """What is measured on a dataset: every task of every subject, but for a first stage that gives no order."""
    return [
        Measurement(subject, task, data)
        for subject in subjects
        if subject.load is not None or data.first_stage_is_ordered
        for task in subject.tasks
    ]


def take(evaluator: Evaluator, measurement: Measurement | TaskMeasurement, steps: Steps) -> None:
    """Take one measurement; a result of this very measurement that is already there is kept.

    Raises:
        DataError: a result's place is taken by another measurement, or a score is not finite.
    """
    subject = measurement.subject
    seed = "" if subject.seed is None else f", seed {subject.seed}"
    name = f"{measurement.task} {measurement.dataset}: {subject.name}{seed}"
    if evaluator.is_done(measurement):
        steps.skip(name)
        return
    with steps.step(name, work_size(measurement)) as step:
        result = evaluator.evaluate(measurement, step.advance)
        if result is not None:
            step.outcome = f"{result.main_metric} {result.aggregate[result.main_metric]:.4f}"


def work_size(measurement: Measurement | TaskMeasurement) -> int | None:
    """Pairs or texts that a model has to score; null where only MTEB knows."""
    if isinstance(measurement, TaskMeasurement):
        return None
    if measurement.subject.load is None:
        return 0
    if measurement.task == "reranking":
        return sum(map(len, measurement.data.candidates.values()))
    pooled = measurement.data.pooled
    return len(pooled.corpus) + len(pooled.queries)
