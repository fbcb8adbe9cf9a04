"""Ranks against scores: distances written as scores rise from rank to rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unimoe.checks import Check
from unimoe.core.trec import Run

CONTRADICTED = 0.9  # share of queries from which on scores that rise with ranks are refused


def check_ranks(run: Run, ranks: Mapping[str, Sequence[float]], name: str) -> tuple[Check, ...]:
    """Count the queries in which more scores rise from a rank to the next than fall.

    ``ranks`` are those of the documents in the order of a file, by query; those of absent queries count the documents.
    It is a refusal where nearly all queries are so, of those whose ranks and scores both differ, else a note.
    """
    ordered = contradicting = 0
    for query, scores in run.items():
        values = np.fromiter(scores.values(), np.float32, len(scores))
        apart = np.ones(len(scores) - 1, dtype=bool)
        if query in ranks:
            places = np.array(ranks[query])
            order = np.argsort(places, kind="stable")
            values, apart = values[order], places[order][1:] > places[order][:-1]
        rises = np.count_nonzero(apart & (values[1:] > values[:-1]))
        falls = np.count_nonzero(apart & (values[1:] < values[:-1]))
        ordered += bool(rises or falls)
        contradicting += bool(rises > falls)
    if not contradicting:
        return ()
    line = f"{name}: scores rise from rank to rank in {contradicting:,} of {ordered:,} queries"
    data = {"contradicting": contradicting, "queries": ordered}
    if contradicting < CONTRADICTED * ordered:
        return (Check("ranks", "note", f"{line}; scores count, not ranks", data),)
    remedy = "negate the scores, or write scores that fall with rank"
    return (Check("ranks", "refusal", f"{line}, as where distances are written as scores", data, remedy),)
