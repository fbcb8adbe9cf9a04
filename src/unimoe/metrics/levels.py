"""From which grade on a document is relevant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unimoe.errors import DataError
from unimoe.metrics.names import canonical_metric, is_binary
from unimoe.trec import Qrels


def from_grade(qrels: Mapping[str, Mapping[str, int]], lowest: int) -> Qrels:
    """Return judgments in which grades below ``lowest`` are 0: what is not relevant enough is not relevant.

    Every judgment stays, so the same queries are judged, and one that loses all its relevant documents counts 0.

    Raises:
        DataError: no grade is that high, so that every query would count 0.
    """
    highest = _highest(qrels)
    if highest < lowest:
        raise DataError(
            f"no judgment reaches grade {lowest}, the highest is {highest}, so nothing would be relevant; "
            "lower relevance_threshold, or check the judgments"
        )
    return {
        query_id: {document_id: grade if grade >= lowest else 0 for document_id, grade in grades.items()}
        for query_id, grades in qrels.items()
    }


def level_note(
    metrics: Iterable[str], qrels: Mapping[str, Mapping[str, int]], stated: int | None, *, where: str, mend: str
) -> str | None:
    """Name the binary metrics that count grade 1 as relevant though grades go higher and no level was stated.

    Args:
        metrics: those that are computed.
        qrels: the judgments.
        stated: the relevance level that data, option or convention states, 1 among them; None where nothing does.
        where: what holds the judgments, as the note names it.
        mend: how to state a level.

    Returns:
        One line, or None where there is nothing to note.
    """
    binary = [canonical_metric(metric) for metric in metrics if is_binary(metric)]
    highest = 0 if stated is not None or not binary else _highest(qrels)
    if highest < 2:
        return None
    verb = "counts" if len(binary) == 1 else "count"
    return (
        f"grades up to {highest} in {where}: {', '.join(binary)} {verb} grade 1 as relevant; "
        f"TREC DL counts from 2: {mend}"
    )


def _highest(qrels: Mapping[str, Mapping[str, int]]) -> int:
    return max((grade for grades in qrels.values() for grade in grades.values()), default=0)
