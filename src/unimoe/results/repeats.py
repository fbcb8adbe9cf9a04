"""Runs and queries that count twice: one run under several seeds, one query under several ids."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from unimoe.core.errors import DataError
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult, by_query_id
from unimoe.results.details import QueryDetail

IdPairs = Sequence[tuple[str, str]]  # ids of one query: a later one, and the first


def same_scores(one: EvalResult, other: EvalResult) -> bool:
    """Return whether two results have the same main metric on every query.

    Scores scaled by 2, or another order of documents that the metric does not see, have another hash.
    """
    return bool(one.per_query) and one.per_query == other.per_query


def one_run(key: str, names: Sequence[str]) -> str:
    """Say that some runs on one ``task/dataset`` are one."""
    return f"{', '.join(names)} have the same score on every query of {key}: they are one run and count once"


def repeats(facts: Iterable[tuple[Hashable, str]]) -> IdPairs:
    """Return the ids of queries of which all facts are equal, from ``(facts, query id)``."""
    return tuple((later, first) for first, *others in gathered(facts).values() for later in others)


def repeated_texts(
    results: Sequence[EvalResult], details: Callable[[EvalResult, Sequence[str]], Mapping[str, QueryDetail]]
) -> IdPairs:
    """Return queries with one text, the same relevant documents, and the same scores in each result on a dataset.

    Equal scores alone prove nothing: many queries have 0 or 1 in every result. ``details`` reads a result's sidecar.
    """
    columns = [
        values for r in results for values in (by_query_id(r.per_query), *map(tuple, r.per_query_metrics.values()))
    ]
    alike = gathered(zip(zip(*columns, strict=True), sorted(results[0].per_query), strict=True))
    asked = {query_id: scores for scores, ids in alike.items() if len(ids) > 1 for query_id in ids}
    for result in results if asked else ():
        try:
            known = details(result, list(asked))
        except DataError:  # no text is known; the drill-down says which sidecar cannot be read
            continue
        facts = ((q, known[q].text, frozenset(known[q].relevant.items())) for q in asked)
        return repeats(((asked[q], text, relevant), q) for q, text, relevant in facts if text)
    return ()


def one_query(key: str, total: int, pairs: IdPairs) -> Iterator[str]:
    """Say how many queries of one ``task/dataset`` repeat another."""
    for again, first in pairs[:1]:
        yield (
            f"{len(pairs):,} of {total:,} queries of {key} repeat another, such as {again!r} and {first!r}: these are "
            "no independent draws, and intervals are too narrow"
        )
