"""The sizes of MTEB's tasks, from the statistics that MTEB publishes with each, before anything is downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mteb import AbsTask

_LENGTH = "total_text_length"


@dataclass(frozen=True)
class TaskSize:
    """What a task asks a model to read, summed over its splits and subsets.

    Attributes:
        queries: those to rank for; 0 in tasks that rank nothing.
        documents: the other texts to embed.
        pairs: candidates to rerank; 0 where the task gives none.
        query_characters: of all queries, without prefixes.
        document_characters: of all other texts, without prefixes.
    """

    queries: int = 0
    documents: int = 0
    pairs: int = 0
    query_characters: int = 0
    document_characters: int = 0

    def __add__(self, other: TaskSize) -> TaskSize:
        return TaskSize(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def task_size(task: AbsTask) -> TaskSize | None:
    """Return the size of a task; None where MTEB publishes no statistics of it."""
    found = list(_statistics(task))
    return sum(map(_size, found), TaskSize()) if found else None


def pairs_above(task: AbsTask, limit: int | None) -> int | None:
    """Return the candidate pairs of a task where there are more than a limit, else None."""
    size = task_size(task) if limit is not None else None
    return size.pairs if size and limit is not None and size.pairs > limit else None


def _statistics(task: AbsTask) -> Iterator[Mapping[str, Any]]:
    """Yield the statistics of each split and subset that is evaluated."""
    published = task.metadata.descriptive_stats or {}
    for whole in (published[split] for split in task.eval_splits if split in published):
        subsets = whole.get("hf_subset_descriptive_stats") or {}
        yield from [subsets[name] for name in task.hf_subsets if name in subsets] or [whole]


def _size(statistics: Mapping[str, Any]) -> TaskSize:
    if "num_queries" in statistics:
        queries, documents = statistics["queries_text_statistics"] or {}, statistics["documents_text_statistics"] or {}
        return TaskSize(
            queries=statistics["num_queries"],
            documents=statistics["num_documents"],
            pairs=(statistics.get("top_ranked_statistics") or {}).get("num_top_ranked", 0),
            query_characters=int(queries.get(_LENGTH, 0)),
            document_characters=int(documents.get(_LENGTH, 0)),
        )
    parts = [part for part in statistics.values() if isinstance(part, dict) and _LENGTH in part]
    sides = sum(name.startswith(("text1", "text2")) for name in statistics)
    unique = sum(int(part.get("unique_texts") or 0) for part in parts)
    return TaskSize(
        documents=max(statistics["num_samples"] * max(1, sides), unique),
        document_characters=sum(int(part[_LENGTH]) for part in parts),
    )
