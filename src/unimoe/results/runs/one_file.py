"""Scoring a TREC run file against a qrels file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unimoe.core.errors import DataError
from unimoe.core.trec import Qrels, Run, head, is_unordered, read_qrels, read_run
from unimoe.data.collection_card import describe_qrels
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.metrics.scoring import computable_metrics, level_note
from unimoe.results.runs.scoring import refuse_depth, refuse_nothing_in_common


@dataclass(frozen=True)
class RunScores:
    """The measures of one run file, with findings that limit their meaning.

    Attributes:
        run: the run file.
        qrels: the qrels file.
        depth: documents scored per query, at most; None for all.
        queries: the number of judged queries, over which the means are taken.
        relevance_level: the lowest grade that binary metrics count as relevant, unless their name fixes one.
        aggregate: metric name to mean; for counts such as NumRet, to their sum.
        per_query: metric name to ``{query id: value}``.
        missing_queries: judged queries that the run lacks, in the order of the qrels; each counts 0.
        unjudged_queries: queries of the run without judgments, sorted; they are left out.
        unordered_queries: judged queries whose documents, two or more, all have one score: they are ordered by id.
        notes: other findings, as sentences.
    """

    run: str
    qrels: str
    depth: int | None
    queries: int
    relevance_level: int
    aggregate: dict[str, float]
    per_query: dict[str, dict[str, float]]
    missing_queries: list[str]
    unjudged_queries: list[str]
    unordered_queries: list[str]
    notes: list[str]


def score_run_file(
    run_path: Path | str,
    qrels_path: Path | str,
    metrics: Sequence[str] = DEFAULT_METRICS,
    depth: int | None = None,
    relevance_level: int | None = None,
) -> RunScores:
    """Score a TREC run with the semantics of ``trec_eval -c``.

    Args:
        run_path: a TREC run; ``.gz`` is unpacked.
        qrels_path: qrels in TREC or BEIR layout; ``.gz`` is unpacked.
        metrics: names as in ``score_run``.
        depth: score only this many documents of each query, its first ones.
        relevance_level: as in ``score_run``; by default the qrels' own (see ``unimoe.data.collection_card``), else 1.

    Raises:
        UsageError: an unknown metric, one that cannot be computed here, or a depth or level below 1.
        DataError: a file is missing, malformed or empty, no query of the run is judged, or ``depth`` would cut a run
            that has no order.
    """
    run_path, qrels_path = Path(run_path), Path(qrels_path)
    refuse_depth(depth)
    stated = describe_qrels(qrels_path).relevance_level if relevance_level is None else relevance_level
    level = 1 if stated is None else stated
    metrics = computable_metrics(metrics, level)  # before the files are read, which may take a while
    qrels, run = read_qrels(qrels_path), read_run(run_path)
    refuse_nothing_in_common(str(run_path), run, str(qrels_path), qrels)
    unordered = [query_id for query_id in qrels if is_unordered(run.get(query_id, {}))]
    if depth is not None:
        _refuse_cut_by_id(run_path, run, qrels, unordered, depth)
        run = {query_id: head(scores, depth) for query_id, scores in run.items()}
    scores = score_run(qrels, run, metrics, level)
    note = level_note(metrics, qrels, stated, where=qrels_path.name, mend="--relevance-level 2")
    return RunScores(
        run=str(run_path),
        qrels=str(qrels_path),
        depth=depth,
        queries=len(qrels),
        relevance_level=level,
        aggregate=scores.aggregate,
        per_query=scores.per_query,
        missing_queries=[query_id for query_id in qrels if query_id not in run],
        unjudged_queries=scores.unjudged_queries,
        unordered_queries=unordered,
        notes=[note] if note else [],
    )


def _refuse_cut_by_id(run_path: Path, run: Run, qrels: Qrels, unordered: Sequence[str], depth: int) -> None:
    """Refuse to cut a run without any order: the ids would choose the documents that remain."""
    several = [query_id for query_id in qrels if len(run.get(query_id, {})) > 1]
    if several == unordered and any(len(run[query_id]) > depth for query_id in unordered):
        raise DataError(
            f"{run_path}: all documents of a query have one score, so --depth {depth} would keep documents by their "
            "ids; give a ranked run, or score this one whole"
        )
