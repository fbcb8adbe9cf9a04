"""Retrieval tasks of MTEB, fetched by its own loader, and families of them by the short names of ``FAMILIES``."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from unimoe.core.errors import DataError, UsageError, did_you_mean, first_few
from unimoe.core.io import cache_dir
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.languages import ENGLISH, language_of
from unimoe.data.published import FAMILIES
from unimoe.data.source import SOURCES, Source, not_at_hand, user_folder
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir


def import_mteb() -> Any:
    """Import the package ``mteb``, so that it keeps its files next to ours and leaves the process as it is.

    The import takes seconds, seeds the global random generators, adds a filter of warnings, and makes a result cache,
    which would be in the user's home unless ``MTEB_CACHE`` says otherwise.
    """
    if "mteb" not in sys.modules:
        from unimoe.data.mteb_names import random_state_kept

        before = os.environ.copy()
        os.environ.setdefault("MTEB_CACHE", str(cache_dir("mteb")))
        try:
            with random_state_kept(), warnings.catch_warnings():
                import_module("mteb")
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)
    return sys.modules["mteb"]


class MtebTasks(Source):
    """Retrieval tasks of MTEB as collections, which are compared by nDCG@10, as most of the tasks are."""

    usage = "mteb:TASK"
    has_published_names = True

    def load(self, name: str, split: str) -> Collection:
        """Load one split of ``TASK``, or of ``TASK:SUBSET`` where the task has several subsets."""
        task = _load_task(name, split)
        subset = task.hf_subsets[0]
        data = task.dataset[subset][split]
        documents = ((key, Document(row.get("title") or "", text)) for key, text, row in _rows(data["corpus"], name))
        # Like mteb itself: a query is its text and, where the task gives one, its instruction.
        queries = (
            (key, f"{text} {row.get('instruction') or ''}".strip()) for key, text, row in _rows(data["queries"], name)
        )
        qrels = {
            query: {key: int(grade) for key, grade in grades.items()} for query, grades in data["relevant_docs"].items()
        }
        return assemble(
            name,
            split,
            documents,
            queries,
            qrels,
            language=language_of(task.metadata.hf_subsets_to_langscripts[subset]),
            excluded=_excluded(task, data),
        )

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
    """Return a retrieval task with the data of one split and one subset."""
    task_name, _, subset = name.partition(":")
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
    subsets = list(task.metadata.hf_subsets)
    if not subset and len(subsets) > 1:
        raise UsageError(f"mteb:{name} has subsets {', '.join(subsets)}; write mteb:{name}:{subsets[0]}")
    if subset and subset not in subsets:
        raise UsageError(f"mteb:{name}: no such subset{did_you_mean(subset, subsets)}; use {', '.join(subsets)}")
    task.hf_subsets = [subset or subsets[0]]  # all of them would be downloaded
    try:
        task.filter_eval_splits([split])
        task.load_data()
    except Exception as error:
        advice = "connect to the network, or copy the Hugging Face cache of a machine that has it"
        raise not_at_hand(f"mteb:{name}", advice, error) from None
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    return task


def _excluded(task: Any, data: Any) -> dict[str, set[str]]:
    """Return what MTEB's list of all candidates lacks, as BRIGHT's tasks say it; reranking tasks mean other lists."""
    listed = (data.get("top_ranked") or {}) if task.metadata.type == "Retrieval" else {}
    ids = {str(row["id"]) for row in data["corpus"]} if listed else set()
    return {query: ids.difference(found) for query, found in listed.items()}


def _rows(rows: Any, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise DataError(f"mteb:{name}: {row.get('id')!r} is not text; only text retrieval can be loaded")
        yield str(row["id"]), row["text"], row


class MtebFamily(MtebTasks):
    """Sets by short names: a folder in BEIR layout such as ``bright/biology`` under $UNIMOE_DATA, else MTEB's task."""

    has_published_names = False

    def __init__(self, word: str) -> None:
        self._word, self._tasks, self.usage = word, FAMILIES[word], f"{word}:NAME"

    def load(self, name: str, split: str) -> Collection:
        """Load one split of a set that has its language in its name."""
        task, folder, whole = self._task(name), self.available(name), f"{self._word}:{name}"
        if folder is None:
            return replace(super().load(task, split), name=whole)
        return read_beir(folder, split, whole, task.partition(":")[2] or ENGLISH)

    def refuse_unknown(self, name: str) -> None:
        """Refuse a name that the family lacks."""
        self._task(name)

    def _task(self, name: str) -> str:
        if name not in self._tasks:
            close = did_you_mean(name, self._tasks) or f"; there are {first_few([*self._tasks], 20)}"
            raise UsageError(f"unknown collection '{self._word}:{name}'{close}")
        return self._tasks[name]

    def available(self, name: str) -> Path | None:
        """Return the folder under $UNIMOE_DATA, where it holds a collection."""
        folder = (user_folder() or Path()) / self._word / name
        return folder if user_folder() and name in self._tasks and is_beir_folder(folder) else None

    def mteb_task(self, name: str) -> str | None:
        """Return the task, without its subset."""
        return super().mteb_task(self._task(name))

    def default_split(self, name: str) -> str:
        """Return the one split that MTEB scores."""
        if self._word == "bright":
            return "long" if name.endswith("-long") else "standard"
        return "dev" if self._word == "miracl" else "test"


SOURCES.add("mteb", MtebTasks())
SOURCES.add("bright", MtebFamily("bright"))
SOURCES.add("miracl", MtebFamily("miracl"))
