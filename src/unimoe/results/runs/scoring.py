"""The door for runs and judgments: in whatever form they come, they are read, checked and scored here.

Every entrance passes it: ``evaluate-run``, ``compare``, ``score_run``, and evaluations with the runs of their models.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unimoe.checks import Check, settled
from unimoe.checks.ids import document_ids, query_ids
from unimoe.checks.rankings import (
    SAID_FROM,
    USUAL_CUTOFF,
    ByQuery,
    Ties,
    Unjudged,
    judged_only,
    tie_checks,
    ties_of,
    unjudged_of,
)
from unimoe.checks.runs import RunFacts, alone, swapped
from unimoe.core.errors import DataError, UsageError, path_of
from unimoe.core.io import HASH_LENGTH
from unimoe.core.trec import Grades, Run, Subtopics, is_unordered, plain_subtopics
from unimoe.formats.runs import load_run
from unimoe.metrics import DEFAULT_METRICS, MetricLike, Scores, parse_metric
from unimoe.metrics.scoring import (
    Order,
    computable_metrics,
    level_note,
    score_plain,
)
from unimoe.results import Otherwise, QueryDetail, result_beside
from unimoe.results.comparability import caveats_of_run
from unimoe.results.runs.sources import (
    QrelsContent,
    RunContent,
    RunSource,
    Scoring,
    judgments,
    refuse_depth,
    refuse_empty,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckedScores(Scores):
    """The measures of a run, and what else its comparison with others needs.

    Attributes:
        unjudged: documents among the first of each query, as many as the first measure looks at, or 10.
        ties: what the order of equal scores leaves open.
        judged: the first measure by query on judged documents alone; None where all of these are relevant.
    """

    unjudged: Unjudged
    ties: Ties = field(default_factory=Ties)
    judged: ByQuery | None = None

    def otherwise(self, counted: Iterable[str]) -> dict[Otherwise, dict[str, float]]:
        """Return the first measure of the counted queries where it may be otherwise, as ``EvalResult`` keeps it."""
        metric, reported = next(iter(self.per_query.items()))
        low, high = self.ties.means(metric, reported)
        others: dict[Otherwise, ByQuery] = {} if self.judged is None else {"judged": self.judged}
        if high - low >= SAID_FROM:
            others |= {"lowest": self.ties.lowest[metric], "highest": self.ties.highest[metric]}
        return {
            name: {q: of[q] for q in counted if of.get(q, reported[q]) != reported[q]} for name, of in others.items()
        }


@dataclass(frozen=True, repr=False)
class RunScores(Scores):
    """The measures of one run against its judgments, with what the door found."""

    run: str = "the run"
    qrels: str = "the qrels"
    depth: int | None = None  # documents scored per query, at most; None for all
    queries: int = 0  # the number of judged queries, over which the means are taken
    relevance_level: int = 1  # the lowest grade that binary metrics count as relevant, unless their name fixes one
    missing_queries: list[str] = field(default_factory=list)  # judged, but not in the run; each counts 0
    unordered_queries: list[str] = field(default_factory=list)  # all documents have one score: ids order them
    unjudged_share: float = 0.0  # of the documents among the first of a query, 0 to 1
    unjudged_cutoff: int = USUAL_CUTOFF  # how many these first are

    @property
    def notes(self) -> list[str]:
        """The lines of all that was found, but for what has a field of its own."""
        own = ("unjudged", "queries", "unjudged_queries", "unordered")
        return [check.line for check in self.checks if check.name not in own]


@dataclass(frozen=True, kw_only=True)
class ScoredRun(RunFacts):
    """What a comparison keeps of a run."""

    source: RunSource
    rankings: dict[str, int]  # hash of documents and scores of each judged query that the run holds
    modified: str  # when the file was last written, in ISO 8601; of a dictionary, now
    scores: CheckedScores  # over all judged queries; those that the run lacks count 0
    details: dict[str, QueryDetail]


@dataclass(frozen=True)
class _Opened:
    """A run that was read, cut and checked, and the order of its documents."""

    run: Run
    order: Order
    unordered: list[str]
    checks: tuple[Check, ...]


def score_run(
    qrels: QrelsContent | str,
    run: RunContent | str,
    metrics: MetricLike | Sequence[MetricLike] = DEFAULT_METRICS,
    relevance_level: int | None = None,
    depth: int | None = None,
    allow: str | Sequence[str] = (),
    subtopics: Subtopics | None = None,
) -> RunScores:
    """Score a run against judgments with the semantics of ``trec_eval -c``, per query and on average.

    Args:
        qrels: ``{query: {document: grade}}``, a frame, or a file in any layout that ``read_qrels`` takes; the gain of
            nDCG is the grade.
        run: ``{query: {document: score}}``, a frame, or a file in any layout that ``read_run`` takes; higher scores are
            better, ties break by document id, descending.
        metrics: in any spelling that ``canonical_metric`` knows, or objects of ir_measures; the scores hold each once,
            by its canonical name.
        relevance_level: the lowest grade that counts as relevant, in binary metrics that fix none by name; by default
            what a qrels file states (see ``unimoe.data.collection``), else 1.
        depth: score only this many documents of each query, its first ones.
        allow: ``ranks``: scores that contradict their ranks, which are refused otherwise.
        subtopics: ``{query: {document: {subtopic: grade}}}``, for alpha-nDCG and its kin; by default those of a qrels
            file.

    Raises:
        UsageError: no or an unknown metric, one that cannot be computed here, or a depth or level below 1.
        DataError: what is given is missing, malformed or empty, no query of the run is judged, ranks contradict scores,
            or ``depth`` would cut a run that has no order.
    """
    refuse_depth(depth)
    # Before the files are read, which may take a while.
    names = computable_metrics(metrics, 1 if relevance_level is None else relevance_level)
    if not names:
        raise UsageError("no metric is named; give one or more, such as 'ndcg@10'")
    judged = judgments(_path(qrels), None, relevance_level, names)
    by_subtopic = judged.subtopics if subtopics is None else plain_subtopics(subtopics)
    content = _path(run)
    source = RunSource("run", judged, 0, str(content) if isinstance(content, Path) else "the run", content)
    opened = _open(source, depth, [allow] if isinstance(allow, str) else allow, refuse_unordered=False)
    scores = checked_scores(judged.qrels, opened.run, names, judged.level, source.name, opened.order, by_subtopic)
    missing = [query_id for query_id in judged.qrels if query_id not in opened.run]
    checks = [*opened.checks, *scores.checks]
    checks += alone(missing, scores.unjudged_queries, opened.unordered, source.name)
    where = judged.name.rpartition("/")[2]
    if note := level_note(names, judged.qrels, judged.stated, where=where, remedy="--relevance-level 2"):
        checks.append(Check("relevance_level", "note", note))
    return RunScores(
        per_query=scores.per_query,
        aggregate=scores.aggregate,
        unjudged_queries=scores.unjudged_queries,
        checks=tuple(checks),
        run=source.name,
        qrels=judged.name,
        depth=depth,
        queries=len(judged.qrels),
        relevance_level=judged.level,
        missing_queries=missing,
        unordered_queries=opened.unordered,
        unjudged_share=scores.unjudged.share,
        unjudged_cutoff=scores.unjudged.cutoff,
    )


def score_run_file(
    run_path: Path | str,
    qrels_path: Path | str,
    metrics: MetricLike | Sequence[MetricLike] = DEFAULT_METRICS,
    depth: int | None = None,
    relevance_level: int | None = None,
) -> RunScores:
    """Score a run file against a qrels file: ``score_run`` with the run first."""
    run, qrels = path_of(run_path, "the run"), path_of(qrels_path, "the qrels")
    return score_run(qrels, run, metrics, relevance_level, depth)


def checked_scores(
    qrels: Grades,
    run: Run,
    metrics: Sequence[MetricLike],
    level: int,
    name: str,
    order: Order | None = None,
    subtopics: Subtopics | None = None,
) -> CheckedScores:
    """Score a run with checked ids, and say what equal scores and unjudged documents leave open.

    Run and judgments are as ``plain_run`` and ``plain_grades`` make them.
    """
    order = Order(run) if order is None else order
    scores = score_plain(qrels, run, metrics, level, subtopics, order)
    measures = list(scores.per_query)
    main = parse_metric(measures[0])
    unjudged = unjudged_of(qrels, order, main.cutoff or USUAL_CUTOFF)
    ties = ties_of(qrels, run, lambda judged, tied: score_plain(judged, tied, measures, level, subtopics).per_query)
    condensed = None
    if unjudged.negatives:
        alone = score_plain(qrels, judged_only(qrels, run), [main.name], level, subtopics)
        condensed = alone.per_query[main.name]
    checks = (*scores.checks, *tie_checks(ties, scores.per_query, name), unjudged.check(name))
    return CheckedScores(**vars(scores) | {"checks": checks}, unjudged=unjudged, ties=ties, judged=condensed)


def score_source(source: RunSource, scoring: Scoring) -> ScoredRun:
    """Read and score one run; a DataError where it is malformed, holds no judged query, or orders none by scores."""
    judged, qrels = source.judged, source.judged.qrels
    opened = _open(source, scoring.depth, scoring.allow, refuse_unordered=True)
    run, order = opened.run, opened.order
    scores = checked_scores(qrels, run, scoring.every, judged.level, source.name, order, judged.subtopics)
    checks = [*opened.checks, *scores.checks, *alone([], scores.unjudged_queries, opened.unordered, source.name)]
    main = parse_metric(scoring.main)
    lowest = main.level or (judged.level if main.binary else 0)
    details = {}
    for query_id, grades in qrels.items():
        places = {document_id: place for place, document_id in enumerate(order[query_id], start=1)}
        relevant = {document_id: grade for document_id, grade in grades.items() if grade > 0 and grade >= lowest}
        ranks = {document_id: places.get(document_id) for document_id in relevant}
        details[query_id] = QueryDetail(text=(judged.texts or {}).get(query_id, ""), relevant=relevant, ranks=ranks)
    digest = hashlib.sha256()
    for query_id in sorted(run):
        digest.update("\n".join((query_id, *order[query_id], "")).encode())
        digest.update(array("d", [run[query_id][document_id] for document_id in order[query_id]]).tobytes())
    written = source.content.stat().st_mtime if isinstance(source.content, Path) else datetime.now(UTC).timestamp()
    return ScoredRun(
        name=source.name,
        system=source.system,
        source=source,
        depth=max(len(order[query_id]) for query_id in qrels),
        digest=digest.hexdigest()[:HASH_LENGTH],
        rankings={query_id: hash(frozenset(run[query_id].items())) for query_id in qrels if query_id in run},
        modified=datetime.fromtimestamp(written, tz=UTC).isoformat(timespec="seconds"),
        scores=replace(scores, checks=tuple(checks)),
        missing=[query_id for query_id in qrels if query_id not in run],
        details=details,
    )


def _open(source: RunSource, depth: int | None, allow: Sequence[str], *, refuse_unordered: bool) -> _Opened:
    """Read a run, cut it to a depth, and check its ids, ranks and order.

    Where all documents of every judged query have one score, the run has no order: it is refused if asked, or if the
    depth cuts it.
    """
    judged = source.judged
    file = load_run(source.content, source.name)
    run, checks = file.run, [*settled(file.checks, allow), *judged.checks]
    if isinstance(source.content, Path) and (result := result_beside(source.content)):
        checks += caveats_of_run(result)
    refuse_empty(source.name, run)
    if run.keys().isdisjoint(judged.qrels):
        hint = f": {found}" if (found := query_ids(judged.qrels, run)) else ""
        raise DataError(
            f"{judged.name}: judges none of the queries of {source.name} (the first are {next(iter(judged.qrels))!r} "
            f"and {next(iter(run))!r}); give the qrels of the run's own collection and split{hint}"
        )
    if hint := query_ids(judged.qrels, run):
        said = f"{source.name}: queries that count as missing: {hint} from {judged.name}; write them alike in both"
        checks.append(Check("query_ids", "caveat", said, unfit=True))
    checks += [*document_ids(judged.qrels, run, source.name, judged.name), *swapped(judged.qrels, run, source.name)]
    order, several, unordered = Order(run), 0, []
    for query_id in judged.qrels:
        if len(scores := run.get(query_id, {})) > 1:
            several += 1
            unordered += [query_id] if is_unordered(scores) else []
    if unordered and several == len(unordered):
        if refuse_unordered:
            raise DataError(
                f"{source.name}: all documents of a query have one score, and no ranks order them; write scores that "
                "fall from rank to rank"
            )
        if depth is not None and any(len(run[query_id]) > depth for query_id in unordered):
            raise DataError(
                f"{source.name}: all documents of a query have one score, so --depth {depth} would keep documents by "
                "their ids; give a ranked run, or score this one whole"
            )
    if depth is not None:
        run = {query_id: {key: of[key] for key in order[query_id][:depth]} for query_id, of in run.items()}
        order = Order(run)
    return _Opened(run, order, unordered, tuple(checks))


def _path(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given
