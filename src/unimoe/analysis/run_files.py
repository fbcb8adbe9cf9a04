"""TREC runs to compare, each read once and kept small: scores, ranks of relevant documents, what to check it by."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from unimoe.errors import DataError
from unimoe.io import HASH_LENGTH
from unimoe.metrics import canonical_metric, score_run
from unimoe.trec import Qrels, Run, head, is_unordered, ranked, read_run, text_lines

_IDS_SHOWN = 5


@dataclass(frozen=True)
class RunFiles:
    """Two arms given as run files, and how to judge them.

    Attributes:
        specialist: run files of the specialist, one per seed; ``joint`` likewise.
        metric: the main metric, in any spelling that ``canonical_metric`` knows.
        dataset: its name; the stem of the qrels by default.
        queries: query texts, lines of ``qid TAB text``, for the drill-down.
        depth: score only this many documents of each query.
        allow: what would be refused otherwise. ``queries``: compare on the judged queries that all runs have.
            ``zeros``: judged queries that a run lacks count 0 there, as in ``trec_eval -c``. ``depth``: runs of
            different depth. ``duplicates``: the same run given twice.
    """

    specialist: tuple[Path, ...]
    joint: tuple[Path, ...]
    qrels: Path
    metric: str = "ndcg@10"
    specialist_name: str = "specialist"
    joint_name: str = "joint"
    dataset: str | None = None
    queries: Path | None = None
    depth: int | None = None
    allow: tuple[str, ...] = ()

    @property
    def by_arm(self) -> dict[str, tuple[Path, ...]]:
        """The files of each arm, specialist first."""
        return {self.specialist_name: self.specialist, self.joint_name: self.joint}


@dataclass(frozen=True)
class ScoredRun:
    """What a comparison keeps of a run file.

    Attributes:
        depth: documents of the longest ranking among judged queries.
        digest: hash of queries, rankings and scores; neither tag nor line order counts.
        modified: when the file was last written, in ISO 8601.
        per_query: metric to ``{query id: value}`` over all judged queries; those that the run lacks count 0.
        missing: judged queries that the run lacks, in the order of the qrels.
        unjudged: queries of the run without judgments, sorted.
        unordered: judged queries whose documents, two or more, all have one score: only their ids order them.
        ranks: rank of each relevant document by judged query, None where it was not ranked.
    """

    path: Path
    depth: int
    digest: str
    modified: str
    per_query: dict[str, dict[str, float]]
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]
    unordered: tuple[str, ...]
    ranks: dict[str, dict[str, int | None]]


def score_run_at(path: Path, qrels: Qrels, metrics: Sequence[str], depth: int | None = None) -> ScoredRun:
    """Read and score one run as ``trec_eval -c`` would.

    Args:
        path: a TREC run; ``.gz`` is unpacked.
        qrels: the judgments.
        metrics: names as in ``unimoe.metrics``.
        depth: keep only this many documents of each query, its first ones.

    Raises:
        DataError: the file is missing, malformed or empty, holds no judged query, or orders no query by scores.
    """
    run = read_run(path)
    unordered = tuple(query_id for query_id in qrels if is_unordered(run.get(query_id, {})))
    _refuse_unusable(path, run, qrels, unordered)
    if depth is not None:
        run = {query_id: head(scores, depth) for query_id, scores in run.items()}
    order = {query_id: ranked(scores) for query_id, scores in run.items()}
    scores = score_run(qrels, run, metrics)
    return ScoredRun(
        path=path,
        depth=max(len(order.get(query_id, ())) for query_id in qrels),
        digest=_digest(run, order),
        modified=datetime.fromtimestamp(path.stat().st_mtime, tz=UTC).isoformat(timespec="seconds"),
        per_query=scores.per_query,
        missing=tuple(query_id for query_id in qrels if query_id not in run),
        unjudged=tuple(scores.unjudged_queries),
        unordered=unordered,
        ranks={query_id: _ranks(order.get(query_id, ()), grades) for query_id, grades in qrels.items()},
    )


def house_metric(name: str) -> str:
    """Return a metric's name in results, from any of its spellings."""
    return canonical_metric(name)


def read_queries(path: Path) -> dict[str, str]:
    """Query texts from lines of ``qid TAB text``; ``.gz`` is unpacked.

    Raises:
        DataError: a line without a tab, or two texts for a query.
    """
    texts: dict[str, str] = {}
    for number, line in text_lines(path):
        query_id, tab, text = line.partition("\t")
        if not tab or not query_id.strip() or not text.strip():
            raise DataError(f"{path}:{number}: not a line of query id, tab, text; write one such line for each query")
        if texts.setdefault(query_id.strip(), text.strip()) != text.strip():
            raise DataError(f"{path}:{number}: query {query_id.strip()!r} has two texts; remove one of them")
    return texts


def some_ids(ids: Sequence[str]) -> str:
    """``3 (q1, q2, q3)``, with the first ids only where there are many."""
    return f"{len(ids):,} ({', '.join(ids[:_IDS_SHOWN])}{', ...' * (len(ids) > _IDS_SHOWN)})"


def _refuse_unusable(path: Path, run: Run, qrels: Qrels, unordered: Sequence[str]) -> None:
    if not run:
        raise DataError(f"{path}: no line in it; there is nothing to score")
    if run.keys().isdisjoint(qrels):
        raise DataError(
            f"{path}: none of its queries is judged (its first is {next(iter(run))!r}, that of the qrels "
            f"{next(iter(qrels))!r}); give the qrels of the run's own collection and split"
        )
    several = sum(len(run.get(query_id, {})) > 1 for query_id in qrels)
    if several and several == len(unordered):
        raise DataError(
            f"{path}: all documents of a query have one score, and the rank column is not read; write scores that "
            "fall from rank to rank"
        )


def _ranks(order: Sequence[str], grades: Mapping[str, int]) -> dict[str, int | None]:
    places = {document_id: place for place, document_id in enumerate(order, start=1)}
    return {document_id: places.get(document_id) for document_id, grade in grades.items() if grade > 0}


def _digest(run: Run, order: Mapping[str, Sequence[str]]) -> str:
    digest = hashlib.sha256()
    for query_id in sorted(run):
        scores = run[query_id]
        digest.update("\n".join((query_id, *order[query_id], "")).encode())
        digest.update(array("d", [scores[document_id] for document_id in order[query_id]]).tobytes())
    return digest.hexdigest()[:HASH_LENGTH]
