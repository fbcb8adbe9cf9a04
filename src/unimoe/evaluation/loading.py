"""Loads the collections of a tier one after the other, and reports on stderr what is odd or missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unimoe.collection_card import COLLECTION_FILE
from unimoe.console import stderr
from unimoe.data.catalog import UnavailableError, available
from unimoe.data.collection import Collection
from unimoe.errors import MissingPartError, first_few
from unimoe.evaluation.tiers import Dataset, LoadedDataset
from unimoe.metrics import DEFAULT_METRICS, level_note


class Loader:
    """Loads datasets one at a time, when the caller asks for the next.

    Attributes:
        missing: a line for each dataset that is not available.
    """

    def __init__(self) -> None:
        self.missing: list[str] = []

    def available(self, datasets: Iterable[Dataset]) -> Iterator[LoadedDataset]:
        """Yield the datasets that are available, each loaded when its turn comes; name the others on stderr.

        Raises:
            DataError: a collection is malformed.
        """
        for dataset in datasets:
            try:
                yield load_reporting(dataset)
            except UnavailableError as error:
                self.missing.append(str(error))
                report_unavailable(error)


def load_reporting(dataset: Dataset) -> LoadedDataset:
    """Load a dataset and say on stderr what is odd about its collection and its candidates.

    Raises:
        UnavailableError: the collection is not available here.
        DataError: it is malformed.
    """
    data = LoadedDataset(dataset)
    oddities = [data.problems] if data.problems else []
    if lacking := data.queries_without_candidates:
        oddities.append(f"judged queries without any candidate, which count 0: {len(lacking):,} ({first_few(lacking)})")
    if not data.first_stage_is_ordered:
        oddities.append(f"{data.first_stage} gives no order, so it gets no scores")
    report_oddities(dataset, data.collection, "; ".join(oddities))
    return data


def report_oddities(dataset: Dataset, collection: Collection, oddities: str) -> None:
    """Print on stderr what is odd about a collection, and a warning where its relevance level was never stated."""
    if oddities:
        stderr.print(f"{dataset.name}: {oddities}", style="dim", soft_wrap=True)
    if note := relevance_level_note(dataset.collection, collection):
        stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)


def report_unavailable(error: UnavailableError) -> None:
    """Print on stderr that a collection is not available."""
    stderr.print(f"not available: {error}", style="yellow", soft_wrap=True)


def relevance_level_note(name: str, collection: Collection) -> str | None:
    """Return one line about a collection whose graded judgments do not state which grades are relevant, else None.

    Args:
        name: of the collection in the catalogue.
        collection: as it was loaded.
    """
    folder = available(name)
    place = folder / COLLECTION_FILE if folder else f"the {COLLECTION_FILE} of a folder in BEIR layout"
    stated = collection.relevance_level if collection.level_stated else None
    mend = f"state relevance_level in {place}"
    return level_note(DEFAULT_METRICS, collection.qrels, stated, where=collection.name, mend=mend)


def refuse_missing(collections: int, tasks: int = 0) -> None:
    """End with the exit code for missing parts where something that was asked for could not be done.

    Args:
        collections: how many could not be had; each was named before.
        tasks: how many of MTEB's tasks failed; each was named before.

    Raises:
        MissingPartError: something is missing.
    """
    parts = [(collections, "collections"), (tasks, "MTEB tasks")]
    missing = " and ".join(f"{count} of the {what} asked for" for count, what in parts if count)
    if missing:
        raise MissingPartError(f"done, without {missing} (named above)")
