"""The sizes of MTEB's tasks, from the statistics that MTEB publishes with each, before anything is downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mteb import AbsTask

_LENGTH = "total_text_length"


@dataclass(frozen=True)
class TaskSize:
    """What a task asks a model to read, summed over its splits and subsets.

    Attributes:
        queries: those to rank for; 0 in tasks that rank nothing.
        texts: to embed.
        characters: of the texts to embed, without prefixes.
        pairs: candidates to rerank; 0 where the task gives none.
        query_characters: of all queries.
        document_characters: of one document, on average.
    """

    queries: int = 0
    texts: int = 0
    characters: int = 0
    pairs: int = 0
    query_characters: int = 0
    document_characters: float = 0.0

    def __add__(self, other: TaskSize) -> TaskSize:
        documents = [(size.texts - size.queries, size.document_characters) for size in (self, other)]
        count = sum(number for number, _ in documents)
        return TaskSize(
            queries=self.queries + other.queries,
            texts=self.texts + other.texts,
            characters=self.characters + other.characters,
            pairs=self.pairs + other.pairs,
            query_characters=self.query_characters + other.query_characters,
            document_characters=sum(number * mean for number, mean in documents) / count if count else 0.0,
        )


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
        characters = [int(part.get(_LENGTH, 0)) for part in (queries, documents)]
        return TaskSize(
            queries=statistics["num_queries"],
            texts=statistics["num_queries"] + statistics["num_documents"],
            characters=sum(characters),
            pairs=(statistics.get("top_ranked_statistics") or {}).get("num_top_ranked", 0),
            query_characters=characters[0],
            document_characters=characters[1] / max(1, statistics["num_documents"]),
        )
    parts = [part for part in statistics.values() if isinstance(part, dict) and _LENGTH in part]
    sides = sum(name.startswith(("text1", "text2")) for name in statistics)
    unique = sum(int(part.get("unique_texts") or 0) for part in parts)
    return TaskSize(
        texts=max(statistics["num_samples"] * max(1, sides), unique),
        characters=sum(int(part[_LENGTH]) for part in parts),
    )
