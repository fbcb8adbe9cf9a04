"""Retrieval tasks of MTEB, fetched by its own loader."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import cache_dir
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.source import SOURCES, Source, not_at_hand


def import_mteb() -> Any:
    """Import the package ``mteb``, so that it keeps its files beside ours.

    The import takes seconds, seeds the global random generators and makes a result cache, which would be in the user's
    home unless ``MTEB_CACHE`` says otherwise.
    """
    os.environ.setdefault("MTEB_CACHE", str(cache_dir("mteb")))
    import mteb

    return mteb


class MtebTasks(Source):
    """Retrieval tasks of MTEB as collections, which are compared by nDCG@10, as most of the tasks are."""

    usage = "mteb:TASK"
    has_published_names = True

    def load(self, name: str, split: str) -> Collection:
        """Load one split of ``TASK``, or of ``TASK:SUBSET`` where the task has several subsets."""
        task = _load_task(name, split)
        subset, subsets = name.partition(":")[2], list(task.dataset)
        if not subset and len(subsets) > 1:
            raise UsageError(f"mteb:{name} has subsets {', '.join(subsets)}; write mteb:{name}:{subsets[0]}")
        if subset and subset not in subsets:
            raise UsageError(f"mteb:{name}: no such subset{did_you_mean(subset, subsets)}; use {', '.join(subsets)}")
        data = task.dataset[subset or subsets[0]][split]
        documents = ((key, Document(row.get("title") or "", text)) for key, text, row in _rows(data["corpus"], name))
        # Like mteb itself: a query is its text and, where the task gives one, its instruction.
        queries = (
            (key, f"{text} {row.get('instruction') or ''}".strip()) for key, text, row in _rows(data["queries"], name)
        )
        qrels = {
            query: {key: int(grade) for key, grade in grades.items()} for query, grades in data["relevant_docs"].items()
        }
        return assemble(name, split, documents, queries, qrels)

    def main_metric(self, name: str, split: str) -> str:
        """Return nDCG@10."""
        return "ndcg@10"

    def mteb_task(self, name: str) -> str | None:
        """Return the task, without its subset."""
        return name.partition(":")[0]

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 2 for the test split of MS MARCO, which is TREC DL's, and 1 for all other tasks."""
        return super().relevance_level(name, split) or 1


def _load_task(name: str, split: str) -> Any:
    """Return a retrieval task with the data of one split."""
    task_name = name.partition(":")[0]
    try:
        task = import_mteb().get_task(task_name)
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
        raise not_at_hand(f"mteb:{name}", advice, error) from None
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    return task


def _rows(rows: Any, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise DataError(f"mteb:{name}: {row.get('id')!r} is not text; only text retrieval can be loaded")
        yield str(row["id"]), row["text"], row


SOURCES.add("mteb", MtebTasks())
