"""Retrieval tasks of MTEB, fetched by its own loader."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import cache_dir
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.source import SOURCES, not_at_hand
from unimoe.data.sources.beir_sets import PublishedSets


def load_mteb(identifier: str, split: str) -> Collection:
    """Load a retrieval task of MTEB.

    Args:
        identifier: ``TASK``, or ``TASK:SUBSET`` where the task has several subsets.
        split: one of the task's.

    Raises:
        UsageError: no such task, subset or split, or a task without a corpus.
        UnavailableError: the hub cannot be reached.
        DataError: the task's rows are not text, or contradict each other.
    """
    mteb = import_mteb()
    task_name, _, subset = identifier.partition(":")
    try:
        task = mteb.get_task(task_name)
    except KeyError as error:
        close = re.search(r"Did you mean: ('[^']+')", str(error.args[0]))
        raise UsageError(
            f"mteb has no task {task_name!r}" + (f" (did you mean {close[1]}?)" if close else "")
        ) from None
    if not hasattr(task, "convert_v1_dataset_format_to_v2"):
        raise UsageError(f"mteb:{task_name} is not a retrieval task: it has no corpus; name one that is")
    if split not in task.eval_splits:
        raise UsageError(f"mteb:{task_name} has no split {split!r}; it has {', '.join(task.eval_splits)}")
    try:
        task.filter_eval_splits([split])
        task.load_data()
    except Exception as error:
        advice = "connect to the network, or copy the Hugging Face cache of a machine that has it"
        raise not_at_hand(f"mteb:{identifier}", advice, error) from None
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    return _collection(task, identifier, subset, split)


def _collection(task: Any, identifier: str, subset: str, split: str) -> Collection:
    subsets = list(task.dataset)
    if not subset and len(subsets) > 1:
        raise UsageError(f"mteb:{identifier} has subsets {', '.join(subsets)}; write mteb:{identifier}:{subsets[0]}")
    if subset and subset not in subsets:
        raise UsageError(f"mteb:{identifier}: no such subset{did_you_mean(subset, subsets)}; use {', '.join(subsets)}")
    data = task.dataset[subset or subsets[0]][split]
    qrels = {
        query: {key: int(grade) for key, grade in grades.items()} for query, grades in data["relevant_docs"].items()
    }
    documents = ((key, Document(row.get("title") or "", text)) for key, text, row in _rows(data["corpus"], identifier))
    # Like mteb itself: a query is its text and, where the task gives one, its instruction.
    queries = (
        (key, f"{text} {row.get('instruction') or ''}".strip()) for key, text, row in _rows(data["queries"], identifier)
    )
    return assemble(identifier, split, documents, queries, qrels)


def _rows(rows: Any, identifier: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise DataError(f"mteb:{identifier}: {row.get('id')!r} is not text; only text retrieval can be loaded")
        yield str(row["id"]), row["text"], row


def import_mteb() -> Any:
    """Import the package ``mteb``, so that it keeps its files beside ours.

    The import takes seconds, seeds the global random generators and makes a result cache, which would be in the user's
    home unless ``MTEB_CACHE`` says otherwise.
    """
    os.environ.setdefault("MTEB_CACHE", str(cache_dir("mteb")))
    import mteb

    return mteb


class MtebTasks(PublishedSets):
    """Retrieval tasks of MTEB as collections, which are compared by nDCG@10, as most of the tasks are."""

    usage = "mteb:TASK"

    def load(self, name: str, split: str) -> Collection:
        """Load one split of a task; see ``load_mteb``."""
        return load_mteb(name, split)

    def main_metric(self, name: str, split: str) -> str:
        """Return nDCG@10."""
        return "ndcg@10"

    def mteb_task(self, name: str) -> str | None:
        """Return the task, without its subset."""
        return name.partition(":")[0]

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 2 for the test split of MS MARCO, which is TREC DL's, and 1 for all other tasks."""
        return super().relevance_level(name, split) or 1


SOURCES.add("mteb", MtebTasks())
