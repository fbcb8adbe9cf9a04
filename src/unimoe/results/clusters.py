"""Queries in clusters or in groups, by files of query id, tab, and the name of either.

A cluster holds paraphrases of one question, or topics of one user: it is drawn whole, its queries are not. Groups are
kinds of queries, to look at each by itself. A folder of results may hold ``clusters.tsv``; every interval and test of
its results is over clusters then. With ``groups.tsv``, differences and TIR are shown by group too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError, some_ids
from unimoe.core.io import write_text
from unimoe.core.trec import text_lines

Codes: TypeAlias = NDArray[np.intp]  # the number of each query's cluster, queries by id


@dataclass(frozen=True)
class _Sets:
    """What each query is in, on all datasets together."""

    name: str  # as messages call it: the path of a file
    of: Mapping[str, str]  # cluster id, or group, by query id

    FILE: ClassVar[str]  # in a folder of results
    WORD: ClassVar[str]
    ID: ClassVar[str]
    ALONE: ClassVar[str]  # what becomes of a query that is in none

    @classmethod
    def kept(cls, folder: Path) -> Self | None:
        """Return those of a folder of results; None where it holds none."""
        return cls.read(folder / cls.FILE) if (folder / cls.FILE).exists() else None

    @classmethod
    def read(cls, given: Path | Mapping[str, str]) -> Self:
        """Take a dictionary, or read a file; a DataError where a line is malformed or a query has two clusters."""
        if not isinstance(given, Path):
            if not isinstance(given, Mapping):
                raise UsageError(f"{cls.WORD}s: {type(given).__name__}; give {{query id: {cls.ID}}} or a file's path")
            if absent := [str(query_id) for query_id, own in given.items() if _is_empty(own)]:
                raise DataError(f"{cls.WORD}s: {some_ids(absent)} have no {cls.ID}; give each query one")
            return cls(f"{cls.WORD}s", {str(query_id): str(own) for query_id, own in given.items()})
        found: dict[str, str] = {}
        for number, line in text_lines(given):
            query_id, _, own = map(str.strip, line.partition("\t"))
            if not query_id or not own:
                raise DataError(f"{given}:{number}: not a line of query id, tab, {cls.ID}; write one for each query")
            if found.setdefault(query_id, own) != own:
                raise DataError(f"{given}:{number}: query {query_id!r} is in two {cls.WORD}s; remove one of its lines")
        return cls(str(given), found)

    def write(self, folder: Path, query_ids: Iterable[str]) -> None:
        """Write those of some queries next to their results."""
        write_text(folder / self.FILE, "".join(f"{query_id}\t{self.of[query_id]}\n" for query_id in query_ids))

    def refuse_others(self, queries: Mapping[str, Iterable[str]], *, whole: bool = True) -> None:
        """Refuse sets that lack queries of some datasets or, if these are all, hold others."""
        known = set[str]()
        for dataset, ids in queries.items():
            known.update(ids)
            if absent := [query_id for query_id in ids if query_id not in self.of]:
                raise DataError(
                    f"{self.name}: queries of {dataset} without a {self.WORD}: {some_ids(absent)}; add a line of query "
                    f"id, tab, {self.ID} for each; {self.ALONE}"
                )
        if others := [query_id for query_id in self.of if whole and query_id not in known]:
            raise DataError(
                f"{self.name}: queries that are on no dataset here: {some_ids(others)}; remove their lines, or correct "
                "their ids"
            )

    def codes(self, query_ids: Iterable[str]) -> Codes:
        """Return the number of each query's cluster."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(self.of[query_id], len(numbers)) for query_id in query_ids], dtype=np.intp)


class Clusters(_Sets):
    """The cluster of each query, on all datasets together."""

    FILE, WORD, ID = "clusters.tsv", "cluster", "cluster id"
    ALONE = "one that belongs to none is a cluster of its own"


class Groups(_Sets):
    """The group of each query, on all datasets together."""

    FILE, WORD, ID = "groups.tsv", "group", "group"
    ALONE = "those of no group that you ask about can be a group together"

    @classmethod
    def given(cls, given: Path | Mapping[str, str]) -> Groups:
        """Take a dictionary, or read a file; a DataError also where there are not two groups to compare."""
        found = cls.read(given)
        if len(names := set(found.of.values())) < 2:
            problem = f"all queries are in one group, {next(iter(names))!r}" if names else "no line in it"
            raise DataError(f"{found.name}: {problem}; name the groups of queries to compare, two or more")
        return found


def _is_empty(own: object) -> bool:
    """Return whether an id is blank, or what pandas has in an empty cell."""
    return str(own).strip() in ("", *(() if isinstance(own, str) else ("None", "nan", "NaT", "<NA>")))


def cluster_sums(values: NDArray[np.float64], codes: Codes) -> NDArray[np.float64]:
    """Return the sums of ``(queries, ...)`` over clusters, in units that keep the mean."""
    sums = np.zeros((codes.max() + 1, *values.shape[1:]))
    np.add.at(sums, codes, values)
    return sums * (len(sums) / len(codes))


def by_cluster(scores: NDArray[np.float64], codes: Codes) -> NDArray[np.float64]:
    """Return ``(runs, clusters)`` from ``(runs, queries)``, with the same means and the variance that clusters have.

    A run's mean plus the deviations of a cluster's queries from it: over these the variance of a mean is the sandwich
    estimate with the factor clusters / (clusters - 1) (Liang & Zeger 1986), its degrees of freedom clusters - 1.
    """
    means = scores.mean(axis=1, keepdims=True)
    return np.asarray(means + cluster_sums((scores - means).T, codes).T)
