"""Runs scored as ``trec_eval -c`` scores them, and the refusals, caveats and warnings that keep a comparison fair."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean, first_few
from unimoe.core.grouping import gathered
from unimoe.core.io import HASH_LENGTH
from unimoe.core.trec import Qrels, Run, head, is_unordered, ranked, read_run
from unimoe.metrics import canonical_metric, parse_metric, plain_run, score_run
from unimoe.metrics.scoring import level_note
from unimoe.results.details import QueryDetail
from unimoe.results.repeats import IdPairs, repeats
from unimoe.results.runs.selection import Judgments, RunSource, refuse_empty

ALLOWANCES = {  # the differences that can be allowed by name, and what each means
    "queries": "compare on the judged queries that all runs have",
    "zeros": "judged queries that a run lacks count 0 there, as in trec_eval -c",
    "depth": "runs of different depth",
    "duplicates": "the same run given twice",
}


@dataclass(frozen=True)
class Scoring:
    """How runs are scored.

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
        refuse_depth(self.depth)

    @property
    def main(self) -> str:
        """The metric that is tested."""
        return self.metrics[0]

    @property
    def every(self) -> tuple[str, ...]:
        """The metrics asked for, then the others."""
        return tuple(dict.fromkeys((*self.metrics, *self.others)))


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

    @property
    def name(self) -> str:
        """The run as messages call it."""
        return self.source.name


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
    unordered = [query_id for query_id in qrels if is_unordered(run.get(query_id, {}))]
    refuse_nothing_in_common(source.name, run, judged.name, qrels)
    _refuse_without_order(source.name, run, qrels, unordered)
    if scoring.depth is not None:
        run = {query_id: head(scores, scoring.depth) for query_id, scores in run.items()}
    order = {query_id: ranked(scores) for query_id, scores in run.items()}
    scores = score_run(qrels, run, scoring.every, judged.level)
    main = parse_metric(scoring.main)
    lowest = main.level or (judged.level if main.binary else 1)
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
        details={query_id: _detail(judged, query_id, order.get(query_id, ()), lowest) for query_id in qrels},
    )


def refuse_depth(depth: int | None) -> None:
    """Refuse a depth to cut runs to that leaves nothing, or is no whole number."""
    if depth is not None and (not hasattr(depth, "__index__") or depth < 1):
        problem = "leaves no document to score" if hasattr(depth, "__index__") else "is no whole number"
        raise UsageError(f"--depth {depth} {problem}; use at least 1")


def caveats_of(runs: Sequence[ScoredRun], scoring: Scoring) -> list[str]:
    """Return in words what was allowed and made use of among the runs on one dataset; what was not is a DataError."""
    depths = [_depth(runs, metric, scoring.allow) for metric in scoring.metrics]
    found = [_duplicates(runs, scoring.allow), _queries(runs, scoring.allow), *depths]
    return [caveat for caveat in found if caveat]


def compared_queries(runs: Sequence[ScoredRun], scoring: Scoring) -> list[str]:
    """Return the judged queries that count: all of them, or with ``--allow queries`` those that every run has."""
    lacking = {query_id for run in runs for query_id in run.missing} if "queries" in scoring.allow else set()
    return [query_id for query_id in runs[0].source.judged.qrels if query_id not in lacking]


def repeated_queries(runs: Sequence[ScoredRun], compared: Sequence[str]) -> IdPairs:
    """Return those of the compared queries with the same judgments and, in every run, the same documents and scores."""
    qrels = runs[0].source.judged.qrels
    found = [query_id for query_id in compared if any(query_id in run.rankings for run in runs)]
    return repeats(
        ((frozenset(qrels[query_id].items()), *(run.rankings.get(query_id) for run in runs)), query_id)
        for query_id in found
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
            yield f"{run.name}: queries without judgments, left out: {_some(run.unjudged)}"
        if run.unordered:
            which = _some(run.unordered)
            yield f"{run.name}: queries with one score for all documents, which only their ids order: {which}"
    deepest = max(run.depth for run in runs)
    for metric in scoring.metrics:
        if deepest < (parse_metric(metric).cutoff or 0):
            yield f"{judged.dataset}: {metric} is computed on rankings that end at depth {deepest:,}"
    hidden = hidden_metrics(runs, scoring)
    for why, metrics in gathered((why, metric) for metric, why in hidden.items()).items():
        yield f"{judged.dataset}: {', '.join(metrics)} not shown: {why}"
    shown = [metric for metric in scoring.every if metric not in hidden]
    note = level_note(shown, judged.qrels, judged.stated, where=judged.name, mend="--relevance-level 2")
    if note:
        yield note
    without = [] if judged.texts is None else [q for q in compared_queries(runs, scoring) if q not in judged.texts]
    if without:
        yield f"{judged.dataset}: no text of {_some(without)}"


def refuse_nothing_in_common(run_name: str, run: Run, qrels_name: str, qrels: Qrels) -> None:
    """Refuse a run or qrels without a line, and qrels that judge no query of the run."""
    refuse_empty(run_name, run)
    refuse_empty(qrels_name, qrels)
    if run.keys().isdisjoint(qrels):
        raise DataError(
            f"{qrels_name}: judges none of the queries of {run_name} (the first are {next(iter(qrels))!r} and "
            f"{next(iter(run))!r}); give the qrels of the run's own collection and split"
        )


def _refuse_without_order(name: str, run: Run, qrels: Qrels, unordered: Sequence[str]) -> None:
    several = sum(len(run.get(query_id, {})) > 1 for query_id in qrels)
    if several and several == len(unordered):
        raise DataError(
            f"{name}: all documents of a query have one score, and the rank column is not read; write scores that "
            "fall from rank to rank"
        )


def _some(ids: Sequence[str]) -> str:
    return f"{len(ids):,} ({first_few(ids, 5)})"


def _detail(judged: Judgments, query_id: str, order: Sequence[str], lowest: int) -> QueryDetail:
    places = {document_id: place for place, document_id in enumerate(order, start=1)}
    relevant = {document_id: grade for document_id, grade in judged.qrels[query_id].items() if grade >= lowest}
    ranks = {document_id: places.get(document_id) for document_id in relevant}
    return QueryDetail(text=(judged.texts or {}).get(query_id, ""), relevant=relevant, ranks=ranks)


def _digest(run: Run, order: Mapping[str, Sequence[str]]) -> str:
    digest = hashlib.sha256()
    for query_id in sorted(run):
        scores = run[query_id]
        digest.update("\n".join((query_id, *order[query_id], "")).encode())
        digest.update(array("d", [scores[document_id] for document_id in order[query_id]]).tobytes())
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


def _duplicates(runs: Sequence[ScoredRun], allow: Collection[str]) -> str | None:
    """Find a run given twice, which fakes a seed or a tie.

    The results themselves tell of a repeated run within one system, so that an allowed one is named here only where two
    systems share it.
    """
    first: dict[str, ScoredRun] = {}
    twice = []
    for run in runs:
        one = first.setdefault(run.digest, run)
        if one is not run and ("duplicates" not in allow or one.source.system != run.source.system):
            twice.append(f"{run.name} holds the same rankings and scores as {one.name}")
    return _allowed("duplicates", "; ".join(twice), "give every run once", allow) if twice else None


def _queries(runs: Sequence[ScoredRun], allow: Collection[str]) -> str | None:
    """Find missing queries: to fill them with 0 in silence favours one system, to leave them out another."""
    found = "; ".join(f"{run.name} lacks {_some(run.missing)}" for run in runs if run.missing)
    if not found:
        return None
    if "zeros" in allow:
        return f"judged queries that a run lacks count 0 there (--allow zeros): {found}"
    judged = len(runs[0].source.judged.qrels)
    common = judged - len({query_id for run in runs for query_id in run.missing})
    if "queries" not in allow:
        raise DataError(
            f"judged queries without documents: {found}; give complete runs, --allow queries to compare on the "
            f"{common:,} that all runs have, or --allow zeros to count them 0 as trec_eval -c does"
        )
    if not common:
        raise DataError(f"no judged query is in every run: {found}; give runs of the same queries")
    return f"compared on the {common:,} of {judged:,} judged queries that all runs have (--allow queries): {found}"


def _depth(runs: Sequence[ScoredRun], metric: str, allow: Collection[str]) -> str | None:
    if not _uneven(runs, metric):
        return None
    shallow, deep = (end(runs, key=lambda run: run.depth) for end in (min, max))
    found = (
        f"{shallow.name} ends at depth {shallow.depth:,}, {deep.name} at {deep.depth:,}, and {metric} looks deeper "
        f"than {shallow.depth:,}"
    )
    return _allowed("depth", found, f"give runs of one depth, cut all with --depth {shallow.depth}", allow)


def _allowed(name: str, found: str, mend: str, allow: Collection[str]) -> str:
    """Return what was found as a caveat where it is allowed by name, else refuse it."""
    if name not in allow:
        raise DataError(f"{found}; {mend}, or --allow {name}")
    return f"{found} (--allow {name})"
