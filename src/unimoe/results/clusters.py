"""Queries in clusters: paraphrases of one question, topics of one user. A cluster is drawn whole, its queries are not.

A folder of results may hold ``clusters.tsv``; every interval and test of its results is over clusters then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError, some_ids
from unimoe.core.io import write_text
from unimoe.core.trec import text_lines

FILE = "clusters.tsv"  # in a folder of results: lines of query id, tab, cluster id

Codes: TypeAlias = NDArray[np.intp]  # the number of each query's cluster, queries by id


@dataclass(frozen=True)
class Clusters:
    """The cluster of each query, on all datasets together."""

    name: str  # as messages call it: the path of a file
    of: Mapping[str, str]  # cluster id by query id

    @classmethod
    def read(cls, given: Path | Mapping[str, str]) -> Clusters:
        """Take a dictionary, or read a file; a DataError where a line is malformed or a query has two clusters."""
        if not isinstance(given, Path):
            if not isinstance(given, Mapping):
                raise UsageError(f"clusters: {type(given).__name__}; give {{query id: cluster id}} or a file's path")
            if absent := [str(query_id) for query_id, cluster in given.items() if _is_empty(cluster)]:
                raise DataError(f"clusters: {some_ids(absent)} have no cluster id; give each query one")
            return cls("clusters", {str(query_id): str(cluster) for query_id, cluster in given.items()})
        found: dict[str, str] = {}
        for number, line in text_lines(given):
            query_id, _, cluster = map(str.strip, line.partition("\t"))
            if not query_id or not cluster:
                raise DataError(f"{given}:{number}: not a line of query id, tab, cluster id; write one for each query")
            if found.setdefault(query_id, cluster) != cluster:
                raise DataError(f"{given}:{number}: query {query_id!r} is in two clusters; remove one of its lines")
        return cls(str(given), found)

    def write(self, folder: Path, query_ids: Iterable[str]) -> None:
        """Write those of some queries beside their results."""
        write_text(folder / FILE, "".join(f"{query_id}\t{self.of[query_id]}\n" for query_id in query_ids))

    def refuse_others(self, queries: Mapping[str, Iterable[str]], *, whole: bool = True) -> None:
        """Refuse clusters that lack queries of some datasets or, if these are all, hold others."""
        known = set[str]()
        for dataset, ids in queries.items():
            known.update(ids)
            if absent := [query_id for query_id in ids if query_id not in self.of]:
                raise DataError(
                    f"{self.name}: queries of {dataset} without a cluster: {some_ids(absent)}; add a line of query id, "
                    "tab, cluster id for each; one that belongs to none is a cluster of its own"
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


def _is_empty(cluster: object) -> bool:
    """Return whether a cluster's id is blank, or what pandas has in an empty cell."""
    return str(cluster).strip() in ("", *(() if isinstance(cluster, str) else ("None", "nan", "NaT", "<NA>")))


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
