"""Tasks and benchmarks of MTEB: by name, the BEIR sets that some are made from, and their sizes.

The sizes come from the statistics that MTEB publishes with each task, before anything is downloaded.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import torch

from unimoe.core.errors import UsageError, did_you_mean
from unimoe.data.published import MTEB_TASKS, canonical_name
from unimoe.data.sources.from_mteb import import_mteb

if TYPE_CHECKING:
    from mteb import AbsTask

FAST_TASKS = ("SciFact", "NFCorpus", "FiQA2018")
FULL_BENCHMARK = "MTEB(eng, v2)"

_BEIR_NAMES = {task: name for name, task in MTEB_TASKS.items()}


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore every global random generator after the block: MTEB seeds them all when imported and with each task."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def mteb_name(collection: str) -> str | None:
    """Return MTEB's name of a BEIR set, whatever folder it is read from; None for any other collection."""
    return MTEB_TASKS.get(canonical_name(collection))


def beir_name(task: str) -> str | None:
    """Return the BEIR set that a task of MTEB is made from, text for text; None for any other task."""
    return _BEIR_NAMES.get(task)


@cache
def ignores_identical_ids(task: str) -> bool:
    """Return whether a task of MTEB leaves out the document with the query's id; False without such a task."""
    with random_state_kept():
        try:
            found = import_mteb().get_task(task)
        except KeyError:
            return False
    return bool(getattr(found, "ignore_identical_ids", False))


def split_names(text: str) -> list[str]:
    """Split a list of names at its commas, except those in brackets, as in ``MTEB(eng, v2)``."""
    return [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]


def find_tasks(names: Iterable[str]) -> list[AbsTask]:
    """Return tasks by name, each once, without their data; a task that is the mean of others becomes those others.

    Args:
        names: of tasks (``SciFact``), of benchmarks (``MTEB(eng, v2)``), or ``fast`` and ``full``.

    Raises:
        UsageError: no such name (the message names the closest); a task is about more than text, such as images; no
            name at all.
    """
    tasks: dict[str, AbsTask] = {}
    with random_state_kept():
        for name in names:
            for task in chain.from_iterable(map(_parts, _named(name))):
                # MTEB returns the same objects each time, and loading and evaluating draw from their generator.
                tasks.setdefault(task.metadata.name, copy.deepcopy(task))
    if not tasks:
        raise UsageError(f"no task of MTEB was named; write task names, {FULL_BENCHMARK!r}, fast or full")
    for name, task in tasks.items():
        if others := sorted(set(task.metadata.modalities) - {"text"}):
            raise UsageError(f"{name} is a task about {' and '.join(others)}; the models here read text, leave it out")
    return list(tasks.values())


def _named(name: str) -> list[AbsTask]:
    mteb = import_mteb()
    if name == "fast":
        return [mteb.get_task(task) for task in FAST_TASKS]
    if name in task_names():
        return [mteb.get_task(name)]
    benchmarks = {benchmark.name for benchmark in mteb.get_benchmarks()}
    wanted = FULL_BENCHMARK if name == "full" else name
    if wanted in benchmarks:
        return list(mteb.get_benchmark(wanted).tasks)
    near = did_you_mean(name, (*task_names(), *sorted(benchmarks), "fast", "full"))
    raise UsageError(f"mteb has no task or benchmark {name!r}{near}; mteb.get_tasks() lists them")


def _parts(task: Any) -> list[AbsTask]:
    return list(chain.from_iterable(map(_parts, task.tasks))) if task.is_aggregate else [task]


@cache
def task_names() -> tuple[str, ...]:
    """Return every task that the installed MTEB knows, sorted."""
    import_mteb()
    from mteb.get_tasks import TASK_LIST

    return tuple(sorted(task.metadata.name for task in TASK_LIST))


def task_types() -> tuple[str, ...]:
    """Return every type of tasks, such as ``STS``."""
    from mteb.abstasks.task_metadata import TaskType

    types: tuple[str, ...] = get_args(TaskType)
    return types


class TaskSize(NamedTuple):
    """What a task asks a model to read, summed over its splits and subsets.

    Attributes:
        queries: those to rank for; 0 in tasks that rank nothing.
        documents: the other texts to embed.
        pairs: candidates to rerank; 0 where the task gives none.
        query_characters: of all queries, without prefixes.
        document_characters: of all other texts, without prefixes.
    """

    queries: int
    documents: int
    pairs: int
    query_characters: int
    document_characters: int


def task_size(task: AbsTask) -> TaskSize | None:
    """Return the size of a task; None where MTEB publishes no statistics of it."""
    published, found = task.metadata.descriptive_stats or {}, list[TaskSize]()
    for whole in (published[split] for split in task.eval_splits if split in published):
        subsets = whole.get("hf_subset_descriptive_stats") or {}
        found += map(_size, [subsets[name] for name in task.hf_subsets if name in subsets] or [whole])
    return TaskSize(*map(sum, zip(*found, strict=True))) if found else None


def pairs_above(task: AbsTask, limit: int | None) -> int | None:
    """Return the candidate pairs of a task where there are more than a limit, else None."""
    size = task_size(task) if limit is not None else None
    return size.pairs if size and limit is not None and size.pairs > limit else None


def _size(statistics: Mapping[str, Any]) -> TaskSize:
    length = "total_text_length"
    if "num_queries" in statistics:
        queries, documents = statistics["queries_text_statistics"] or {}, statistics["documents_text_statistics"] or {}
        pairs = (statistics.get("top_ranked_statistics") or {}).get("num_top_ranked", 0)
        characters = int(queries.get(length, 0)), int(documents.get(length, 0))
        return TaskSize(statistics["num_queries"], statistics["num_documents"], pairs, *characters)
    parts = [part for part in statistics.values() if isinstance(part, dict) and length in part]
    sides = sum(name.startswith(("text1", "text2")) for name in statistics)
    unique = sum(int(part.get("unique_texts") or 0) for part in parts)
    texts = max(statistics["num_samples"] * max(1, sides), unique)
    return TaskSize(0, texts, 0, 0, sum(int(part[length]) for part in parts))
