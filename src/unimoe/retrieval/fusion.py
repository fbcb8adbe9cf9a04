"""Fuses rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unimoe.core.trec import Run, head, ranked


def reciprocal_rank_fusion(runs: Sequence[Mapping[str, Mapping[str, float]]], *, depth: int, k: int = 60) -> Run:
    """Fuse runs by reciprocal rank: a document's score is the sum of ``1 / (k + rank)`` over the runs that found it.

    Ranks count from 1, in trec_eval's order: by score, ties by document id descending. The order of the runs does not
    matter. From Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank
    learning methods", SIGIR 2009, whose k is 60.

    Args:
        runs: at least one.
        depth: documents kept per query, at most; the runs are read whole.
        k: the larger, the less the first ranks count; at least 0.
    """
    fused: Run = {}
    for query_id in dict.fromkeys(query_id for run in runs for query_id in run):
        shares: dict[str, list[float]] = {}
        for run in runs:
            for rank, document_id in enumerate(ranked(run.get(query_id, {})), start=1):
                shares.setdefault(document_id, []).append(1 / (k + rank))
        # fsum rounds once, so that the order of the runs cannot change the last bit.
        fused[query_id] = head({document_id: math.fsum(parts) for document_id, parts in shares.items()}, depth)
    return fused
