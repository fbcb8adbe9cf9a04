"""Runs scored as ``trec_eval -c`` scores them, and the refusals, caveats and warnings that keep a comparison fair."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean, first_few
from unimoe.core.grouping import gathered
from unimoe.core.io import HASH_LENGTH
from unimoe.core.trec import Run, head, is_unordered, ranked, read_run
from unimoe.metrics import DEFAULT_METRICS, canonical_metric, parse_metric, score_run
from unimoe.metrics.scoring import computable_metrics, level_note, plain_run
from unimoe.results import QueryDetail
from unimoe.results.folder import IdPairs, repeats
from unimoe.results.runs.sources import Judgments, RunSource, judgments, refuse_empty

ALLOWANCES = {  # the differences that can be allowed by name, and what each means
    "queries": "compare on the judged queries that all runs have",
    "zeros": "judged queries that a run lacks count 0 there, as in trec_eval -c",
    "depth": "runs of different depth",
    "duplicates": "the same run given twice",
}


@dataclass(frozen=True)
class RunScores:
    """The measures of one run file, with findings that limit their meaning."""

    run: str
    qrels: str
    depth: int | None  # documents scored per query, at most; None for all
    queries: int  # the number of judged queries, over which the means are taken
    relevance_level: int  # the lowest grade that binary metrics count as relevant, unless their name fixes one
    aggregate: dict[str, float]  # metric name to mean; for counts such as NumRet, to their sum
    per_query: dict[str, dict[str, float]]  # metric name to ``{query id: value}``
    missing_queries: list[str]  # judged queries that the run lacks, in the order of the qrels; each counts 0
    unjudged_queries: list[str]  # queries of the run without judgments, sorted; they are left out
    unordered_queries: list[str]  # judged queries whose documents, two or more, all have one score: ids order them
    notes: list[str]  # other findings, as sentences


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
    _refuse_depth(depth)
    # Before the files are read, which may take a while.
    computable_metrics(metrics, 1 if relevance_level is None else relevance_level)
    judged = judgments(qrels_path, "run", relevance_level)
    metrics = computable_metrics(metrics, judged.level)
    run = read_run(run_path)
    unordered, none_ordered = _unordered(str(run_path), run, judged)
    if none_ordered and depth is not None and any(len(run[query_id]) > depth for query_id in unordered):
        raise DataError(
            f"{run_path}: all documents of a query have one score, so --depth {depth} would keep documents by their "
            "ids; give a ranked run, or score this one whole"
        )
    run = _cut(run, depth)
    scores = score_run(judged.qrels, run, metrics, judged.level)
    note = level_note(metrics, judged.qrels, judged.stated, where=qrels_path.name, remedy="--relevance-level 2")
    return RunScores(
        run=str(run_path),
        qrels=str(qrels_path),
        depth=depth,
        queries=len(judged.qrels),
        relevance_level=judged.level,
        aggregate=scores.aggregate,
        per_query=scores.per_query,
        missing_queries=[query_id for query_id in judged.qrels if query_id not in run],
        unjudged_queries=scores.unjudged_queries,
        unordered_queries=unordered,
        notes=[note] if note else [],
    )


@dataclass(frozen=True)
class Scoring:
    """How the runs of a comparison are scored.

    Raises:
        UsageError: an unknown metric or allowance, two allowances that contradict each other, or a depth below 1.
    """

    metrics: tuple[str, ...]  # those asked for, in any spelling; the first is the main metric, which is tested
    others: tuple[str, ...] = ()  # shown too where the rankings of all runs are deep enough
    depth: int | None = None  # score only this many documents of each query
    allow: tuple[str, ...] = ()  # what would be refused otherwise, of ``ALLOWANCES``
    paired: bool = False  # whether run i of all systems shares data order and initial weights

    def __post_init__(self) -> None:
        for name in ("metrics", "others"):
            object.__setattr__(self, name, tuple(dict.fromkeys(map(canonical_metric, getattr(self, name)))))
        for name in self.allow:
            if name not in ALLOWANCES:
                hint = did_you_mean(name, ALLOWANCES)
                raise UsageError(f"--allow {name}: unknown{hint}; use {', '.join(ALLOWANCES)}")
        if {"queries", "zeros"} <= set(self.allow):
            raise UsageError(
                "--allow queries leaves out what --allow zeros counts as 0; give the one that suits the runs"
            )
        if not self.metrics:
            raise UsageError("no metric to compare by; name one, such as ndcg@10")
        _refuse_depth(self.depth)

    @property
    def main(self) -> str:
        """The metric that is tested."""
        return self.metrics[0]

    @property
    def every(self) -> tuple[str, ...]:
        """The metrics asked for, then the others."""
        return tuple(dict.fromkeys((*self.metrics, *self.others)))

    def allowed(self, name: str, found: str, remedy: str) -> str:
        """Return what was found as a caveat where it is allowed by name, else refuse it."""
        if name not in self.allow:
            raise DataError(f"{found}; {remedy}, or --allow {name}")
        return f"{found} (--allow {name})"


@dataclass(frozen=True)
class ScoredRun:
    """What a comparison keeps of a run."""

    source: RunSource
    depth: int  # documents of the longest ranking among judged queries
    digest: str  # hash of queries, rankings and scores; neither tag nor line order counts
    rankings: dict[str, int]  # hash of documents and scores of each judged query that the run holds
    modified: str  # when the file was last written, in ISO 8601; of a dictionary, now
    per_query: dict[str, dict[str, float]]  # by metric, over all judged queries; those that the run lacks count 0
    missing: list[str]  # judged queries that the run lacks, in the order of the qrels
    unjudged: list[str]  # queries of the run without judgments, sorted
    unordered: list[str]  # judged queries whose documents, two or more, all have one score: only their ids order them
    details: dict[str, QueryDetail]


def score_source(source: RunSource, scoring: Scoring) -> ScoredRun:
    """Read and score one run; a DataError where it is malformed, holds no judged query, or orders none by scores."""
    judged, qrels = source.judged, source.judged.qrels
    if isinstance(source.content, Path):
        run, modified = read_run(source.content), datetime.fromtimestamp(source.content.stat().st_mtime, tz=UTC)
    else:
        try:
            run, modified = plain_run(source.content), datetime.now(UTC)
        except DataError as error:
            raise DataError(f"{source.name}: {error}") from None
    unordered, none_ordered = _unordered(source.name, run, judged)
    if none_ordered:
        raise DataError(
            f"{source.name}: all documents of a query have one score, and the rank column is not read; write scores "
            "that fall from rank to rank"
        )
    run = _cut(run, scoring.depth)
    order = {query_id: ranked(scores) for query_id, scores in run.items()}
    scores = score_run(qrels, run, scoring.every, judged.level)
    main = parse_metric(scoring.main)
    lowest = main.level or (judged.level if main.binary else 1)
    details = {}
    for query_id, grades in qrels.items():
        places = {document_id: place for place, document_id in enumerate(order.get(query_id, ()), start=1)}
        relevant = {document_id: grade for document_id, grade in grades.items() if grade >= lowest}
        ranks = {document_id: places.get(document_id) for document_id in relevant}
        details[query_id] = QueryDetail(text=(judged.texts or {}).get(query_id, ""), relevant=relevant, ranks=ranks)
    return ScoredRun(
        source=source,
        depth=max(len(order.get(query_id, ())) for query_id in qrels),
        digest=_digest(run, order),
        rankings={query_id: hash(frozenset(run[query_id].items())) for query_id in qrels if query_id in run},
        modified=modified.isoformat(timespec="seconds"),
        per_query=scores.per_query,
        missing=[query_id for query_id in qrels if query_id not in run],
        unjudged=scores.unjudged_queries,
        unordered=unordered,
        details=details,
    )


def caveats_of(runs: Sequence[ScoredRun], scoring: Scoring) -> list[str]:
    """Return in words what was allowed and made use of among the runs on one dataset; what was not is a DataError."""
    depths = [_depth(runs, metric, scoring) for metric in scoring.metrics]
    return [caveat for caveat in (_duplicates(runs, scoring), _queries(runs, scoring), *depths) if caveat]


def compared_queries(runs: Sequence[ScoredRun], scoring: Scoring) -> list[str]:
    """Return the judged queries that count: all of them, or with ``--allow queries`` those that every run has."""
    lacking = {query_id for run in runs for query_id in run.missing} if "queries" in scoring.allow else set()
    return [query_id for query_id in runs[0].source.judged.qrels if query_id not in lacking]


def repeated_queries(runs: Sequence[ScoredRun], compared: Sequence[str]) -> IdPairs:
    """Return those of the compared queries with the same judgments and, in every run, the same documents and scores."""
    qrels = runs[0].source.judged.qrels
    return repeats(
        ((frozenset(qrels[query_id].items()), *(run.rankings.get(query_id) for run in runs)), query_id)
        for query_id in compared
        if any(query_id in run.rankings for run in runs)
    )


def hidden_metrics(runs: Sequence[ScoredRun], scoring: Scoring) -> dict[str, str]:
    """Return those not asked for that see less of a run than their name says, each with the reason."""
    others = {metric: _why_hidden(runs, metric) for metric in scoring.every if metric not in scoring.metrics}
    return {metric: why for metric, why in others.items() if why}


def warnings_of(runs: Sequence[ScoredRun], scoring: Scoring) -> Iterator[str]:
    """Yield what refuses nothing, but should be known before the numbers are believed."""
    judged = runs[0].source.judged
    for run in runs:
        if run.unjudged:
            yield f"{run.source.name}: queries without judgments, left out: {_some(run.unjudged)}"
        if run.unordered:
            which = _some(run.unordered)
            yield f"{run.source.name}: queries with one score for all documents, which only their ids order: {which}"
    deepest = max(run.depth for run in runs)
    for metric in scoring.metrics:
        if deepest < (parse_metric(metric).cutoff or 0):
            yield f"{judged.dataset}: {metric} is computed on rankings that end at depth {deepest:,}"
    hidden = hidden_metrics(runs, scoring)
    for why, metrics in gathered((why, metric) for metric, why in hidden.items()).items():
        yield f"{judged.dataset}: {', '.join(metrics)} not shown: {why}"
    shown = [metric for metric in scoring.every if metric not in hidden]
    if note := level_note(shown, judged.qrels, judged.stated, where=judged.name, remedy="--relevance-level 2"):
        yield note
    without = [] if judged.texts is None else [q for q in compared_queries(runs, scoring) if q not in judged.texts]
    if without:
        yield f"{judged.dataset}: no text of {_some(without)}"


def _refuse_depth(depth: int | None) -> None:
    """Refuse a depth to cut runs to that leaves nothing, or is no whole number."""
    if depth is not None and (not hasattr(depth, "__index__") or depth < 1):
        problem = "leaves no document to score" if hasattr(depth, "__index__") else "is no whole number"
        raise UsageError(f"--depth {depth} {problem}; use at least 1")


def _unordered(name: str, run: Run, judged: Judgments) -> tuple[list[str], bool]:
    """Return the judged queries whose documents all have one score, and whether no query of several has an order.

    An empty run, and one that holds no judged query, is a DataError.
    """
    refuse_empty(name, run)
    if run.keys().isdisjoint(judged.qrels):
        raise DataError(
            f"{judged.name}: judges none of the queries of {name} (the first are {next(iter(judged.qrels))!r} and "
            f"{next(iter(run))!r}); give the qrels of the run's own collection and split"
        )
    unordered = [query_id for query_id in judged.qrels if is_unordered(run.get(query_id, {}))]
    several = sum(len(run.get(query_id, {})) > 1 for query_id in judged.qrels)
    return unordered, bool(unordered) and several == len(unordered)


def _cut(run: Run, depth: int | None) -> Run:
    return run if depth is None else {query_id: head(scores, depth) for query_id, scores in run.items()}


def _some(ids: Sequence[str]) -> str:
    return f"{len(ids):,} ({first_few(ids, 5)})"


def _digest(run: Run, order: Mapping[str, Sequence[str]]) -> str:
    digest = hashlib.sha256()
    for query_id in sorted(run):
        digest.update("\n".join((query_id, *order[query_id], "")).encode())
        digest.update(array("d", [run[query_id][document_id] for document_id in order[query_id]]).tobytes())
    return digest.hexdigest()[:HASH_LENGTH]


def _uneven(runs: Sequence[ScoredRun], metric: str) -> bool:
    """Return whether a metric sees more of one run than of another because their rankings end at different depths."""
    depths, cutoff = {run.depth for run in runs}, parse_metric(metric).cutoff
    return len(depths) > 1 and (cutoff is None or cutoff > min(depths))


def _why_hidden(runs: Sequence[ScoredRun], metric: str) -> str:
    if _uneven(runs, metric):
        return "the runs end at different depths"
    deepest = max(run.depth for run in runs)
    return f"the runs end at depth {deepest:,}" if deepest < (parse_metric(metric).cutoff or 0) else ""


def _duplicates(runs: Sequence[ScoredRun], scoring: Scoring) -> str | None:
    """Find a run given twice, which fakes a seed or a tie.

    The results themselves tell of a repeated run within one system, so that an allowed one is named here only where two
    systems share it.
    """
    first: dict[str, ScoredRun] = {}
    twice = []
    for run in runs:
        one = first.setdefault(run.digest, run)
        if one is not run and ("duplicates" not in scoring.allow or one.source.system != run.source.system):
            twice.append(f"{run.source.name} holds the same rankings and scores as {one.source.name}")
    return scoring.allowed("duplicates", "; ".join(twice), "give every run once") if twice else None


def _queries(runs: Sequence[ScoredRun], scoring: Scoring) -> str | None:
    """Find missing queries: to fill them with 0 in silence favours one system, to leave them out another."""
    found = "; ".join(f"{run.source.name} lacks {_some(run.missing)}" for run in runs if run.missing)
    if not found:
        return None
    if "zeros" in scoring.allow:
        return f"judged queries that a run lacks count 0 there (--allow zeros): {found}"
    judged = len(runs[0].source.judged.qrels)
    common = judged - len({query_id for run in runs for query_id in run.missing})
    if "queries" not in scoring.allow:
        raise DataError(
            f"judged queries without documents: {found}; give complete runs, --allow queries to compare on the "
            f"{common:,} that all runs have, or --allow zeros to count them 0 as trec_eval -c does"
        )
    if not common:
        raise DataError(f"no judged query is in every run: {found}; give runs of the same queries")
    return f"compared on the {common:,} of {judged:,} judged queries that all runs have (--allow queries): {found}"


def _depth(runs: Sequence[ScoredRun], metric: str, scoring: Scoring) -> str | None:
    if not _uneven(runs, metric):
        return None
    shallow, deep = (end(runs, key=lambda run: run.depth) for end in (min, max))
    found = (
        f"{shallow.source.name} ends at depth {shallow.depth:,}, {deep.source.name} at {deep.depth:,}, and {metric} "
        f"looks deeper than {shallow.depth:,}"
    )
    return scoring.allowed("depth", found, f"give runs of one depth, cut all with --depth {shallow.depth}")
