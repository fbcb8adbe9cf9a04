"""Loads the collections of a tier, reports what is odd about them, and goes on when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unimoe.core.console import stderr
from unimoe.core.errors import UnimoeError, first_few, refuse_missing
from unimoe.data.catalog import available
from unimoe.data.collection import Collection
from unimoe.data.collection_card import COLLECTION_FILE
from unimoe.data.source import UnavailableError
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import level_note


class Failures:
    """Keeps an evaluation of many datasets going when one fails: lists its name, and the reason that stderr shows."""

    def __init__(self) -> None:
        self.collections: list[str] = []
        self.tasks: list[str] = []
        self.reasons: list[str] = []
        self._first: Exception | None = None

    @contextmanager
    def kept(self, collection: str | None = None, *, task: str | None = None) -> Iterator[None]:
        """Run a block about one collection, or one of MTEB's tasks, and go on after it whatever it raises."""
        try:
            yield
        except Exception as error:  # the others are still worth having
            names, name = (self.collections, collection) if collection else (self.tasks, task or "")
            if name not in names:
                names.append(name)
            self._first = self._first or error
            line = failure_line(name, error)
            self.reasons.append(line)
            stderr.print(line, style="yellow", soft_wrap=True)

    def refuse(self, done: bool) -> None:
        """End with an error where something failed; ``done`` says whether anything was evaluated."""
        if self._first and not done and not isinstance(self._first, UnavailableError):
            raise self._first
        refuse_missing({"collection": self.collections, "MTEB task": self.tasks})


def failure_line(name: str, error: Exception) -> str:
    """Return one line about a collection or a task that failed."""
    if isinstance(error, UnavailableError):
        return f"not available: {error}"
    reason = failure_reason(error)
    return f"failed: {reason}" if reason.startswith(name) else f"failed: {name}: {reason}"


def failure_reason(error: Exception) -> str:
    """Return why something has no score, in one line."""
    message = " ".join(str(error).split())[:300]
    return message if isinstance(error, UnimoeError) else f"{type(error).__name__}: {message}"


def load_reporting(dataset: Dataset, device: torch.device | None = None) -> LoadedDataset:
    """Load a dataset as ``LoadedDataset`` does, and say on stderr what is odd about it and its candidates."""
    data = LoadedDataset(dataset, device)
    report_dataset(data)
    return data


def report_dataset(data: LoadedDataset) -> None:
    """Say on stderr what is odd about a dataset's collection and its candidates."""
    oddities = [data.problems] if data.problems else []
    if lacking := data.queries_without_candidates:
        oddities.append(f"judged queries without any candidate, which count 0: {len(lacking):,} ({first_few(lacking)})")
    if not data.first_stage.ordered:
        oddities.append(f"{data.first_stage.source} gives no order, so it gets no scores")
    report_oddities(data.dataset, data.collection, "; ".join(oddities))


def report_oddities(dataset: Dataset, collection: Collection, oddities: str) -> None:
    """Print on stderr what is odd about a collection, and a warning where its relevance level was never stated."""
    if oddities:
        stderr.print(f"{dataset.name}: {oddities}", style="dim", soft_wrap=True)
    if note := relevance_level_note(dataset.collection, collection):
        stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)


def relevance_level_note(name: str, collection: Collection) -> str | None:
    """Return one line about a collection whose graded judgments do not state which grades are relevant, else None."""
    folder = available(name)
    place = folder / COLLECTION_FILE if folder else f"the {COLLECTION_FILE} of a folder in BEIR layout"
    stated = collection.relevance_level if collection.level_stated else None
    remedy = f"state relevance_level in {place}"
    return level_note(DEFAULT_METRICS, collection.qrels, stated, where=collection.name, remedy=remedy)
