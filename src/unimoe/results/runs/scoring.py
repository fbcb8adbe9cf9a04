"""Runs, from files or dictionaries, scored as ``trec_eval -c`` scores them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from unimoe.checks import settled
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import HASH_LENGTH, hash_file, hash_json
from unimoe.core.limits import name_problem, shortened
from unimoe.core.trec import Qrels, Run, head, is_unordered, ranked, whole_grades
from unimoe.data.collection_card import describe_qrels
from unimoe.formats.qrels import load_qrels
from unimoe.formats.runs import load_run
from unimoe.metrics import DEFAULT_METRICS, MetricLike, canonical_metrics, parse_metric, score_run
from unimoe.metrics.scoring import checked_level, computable_metrics, level_note
from unimoe.results import QueryDetail

RunContent: TypeAlias = Path | Mapping[str, Mapping[str, float]]
QrelsContent: TypeAlias = Path | Mapping[str, Mapping[str, int]]

ALLOWANCES = ("queries", "zeros", "depth", "duplicates")  # the help of ``compare --allow`` says what each means


@dataclass(frozen=True)
class Judgments:
    """The judgments of one dataset."""

    dataset: str
    name: str  # as messages call the judgments: the path of a file
    qrels: Qrels
    content_hash: str
    level: int  # the lowest grade that binary measures count as relevant
    stated: int | None  # the level that the user or the file's own description states
    texts: Mapping[str, str] | None = None  # of queries; None where none are given


@dataclass(frozen=True)
class RunSource:
    """One run, which is one seed of a system on a dataset."""

    system: str
    judged: Judgments
    seed: int  # counted from 0 in the order given
    name: str  # as messages call it: the path of a file
    content: RunContent


@dataclass(frozen=True)
class Scoring:
    """How the runs of a comparison are scored; a UsageError where metrics, allowances or depth make no sense."""

    metrics: tuple[str, ...]  # those asked for, in any spelling; the first is the main metric
    others: tuple[str, ...] = ()  # shown too where the rankings of all runs are deep enough
    depth: int | None = None  # score only this many documents of each query
    allow: tuple[str, ...] = ()  # what would be refused otherwise, of ``ALLOWANCES``
    paired: bool = False  # whether run i of all systems shares data order and initial weights

    def __post_init__(self) -> None:
        for name in ("metrics", "others"):
            object.__setattr__(self, name, canonical_metrics(getattr(self, name)))
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
        """The metric that heads the tables."""
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


def judgments(content: QrelsContent, dataset: str | None = None, level: int | None = None) -> Judgments:
    """Read the judgments of a dataset; its name and level are by default those stated of the file, else its stem and 1.

    A UsageError where the level is below 1 or the name cannot be a dataset's, a DataError where the file is malformed.
    """
    if level is not None:
        level = checked_level(level, "--relevance-level")
    if isinstance(content, Path):
        described = describe_qrels(content)
        loaded, name, content_hash = load_qrels(content), str(content), hash_file(content)
        dataset = dataset or described.name or Path(content.name.removesuffix(".gz")).stem
        level = level or described.relevance_level
    else:
        name = f"qrels of {dataset or 'the dataset'}"
        loaded = load_qrels(content, name)
        content_hash = hash_json(loaded.qrels)
    try:
        qrels = whole_grades(loaded.qrels)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    _refuse_empty(name, qrels)
    if problem := name_problem(dataset or "dataset"):
        raise UsageError(f"a dataset cannot be named {shortened(str(dataset))!r}, which {problem}; give --dataset NAME")
    return Judgments(dataset or "dataset", name, qrels, content_hash, level or 1, level)


def score_run_file(
    run_path: Path | str,
    qrels_path: Path | str,
    metrics: MetricLike | Sequence[MetricLike] = DEFAULT_METRICS,
    depth: int | None = None,
    relevance_level: int | None = None,
) -> RunScores:
    """Score a TREC run with the semantics of ``trec_eval -c``.

    Args:
        run_path: a TREC run; ``.gz`` is unpacked.
        qrels_path: qrels in TREC or BEIR layout; ``.gz`` is unpacked.
        metrics: as in ``score_run``.
        depth: score only this many documents of each query, its first ones.
        relevance_level: as in ``score_run``; by default the qrels' own (see ``unimoe.data.collection_card``), else 1.

    Raises:
        UsageError: an unknown metric, one that cannot be computed here, or a depth or level below 1.
        DataError: a file is missing, malformed or empty, no query of the run is judged, or ``depth`` would cut a run
            that has no order.
    """
    _refuse_depth(depth)
    # Before the files are read, which may take a while.
    names = computable_metrics(metrics, 1 if relevance_level is None else relevance_level)
    judged = judgments(Path(qrels_path), "run", relevance_level)
    source = RunSource("run", judged, 0, str(run_path), Path(run_path))
    run, unordered = _read(source, depth, refuse_unordered=False)
    scores = score_run(judged.qrels, run, names, judged.level)
    where = Path(qrels_path).name
    note = level_note(names, judged.qrels, judged.stated, where=where, remedy="--relevance-level 2")
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


def score_source(source: RunSource, scoring: Scoring) -> ScoredRun:
    """Read and score one run; a DataError where it is malformed, holds no judged query, or orders none by scores."""
    judged, qrels = source.judged, source.judged.qrels
    run, unordered = _read(source, scoring.depth, refuse_unordered=True)
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
    digest = hashlib.sha256()
    for query_id in sorted(run):
        digest.update("\n".join((query_id, *order[query_id], "")).encode())
        digest.update(array("d", [run[query_id][document_id] for document_id in order[query_id]]).tobytes())
    written = source.content.stat().st_mtime if isinstance(source.content, Path) else datetime.now(UTC).timestamp()
    return ScoredRun(
        source=source,
        depth=max(len(order.get(query_id, ())) for query_id in qrels),
        digest=digest.hexdigest()[:HASH_LENGTH],
        rankings={query_id: hash(frozenset(run[query_id].items())) for query_id in qrels if query_id in run},
        modified=datetime.fromtimestamp(written, tz=UTC).isoformat(timespec="seconds"),
        per_query=scores.per_query,
        missing=[query_id for query_id in qrels if query_id not in run],
        unjudged=scores.unjudged_queries,
        unordered=unordered,
        details=details,
    )


def _read(source: RunSource, depth: int | None, *, refuse_unordered: bool) -> tuple[Run, list[str]]:
    """Return a run cut to a depth, and its judged queries whose documents, two or more, all have one score.

    Where these are all its judged queries, the run has no order: it is refused if asked, or if the depth cuts it.
    """
    judged = source.judged
    loaded = load_run(source.content, source.name)
    settled(loaded.checks)
    run = loaded.run
    _refuse_empty(source.name, run)
    if run.keys().isdisjoint(judged.qrels):
        raise DataError(
            f"{judged.name}: judges none of the queries of {source.name} (the first are {next(iter(judged.qrels))!r} "
            f"and {next(iter(run))!r}); give the qrels of the run's own collection and split"
        )
    unordered = [query_id for query_id in judged.qrels if is_unordered(run.get(query_id, {}))]
    several = sum(len(run.get(query_id, {})) > 1 for query_id in judged.qrels)
    if unordered and several == len(unordered):
        if refuse_unordered:
            raise DataError(
                f"{source.name}: all documents of a query have one score, and the rank column is not read; write "
                "scores that fall from rank to rank"
            )
        if depth is not None and any(len(run[query_id]) > depth for query_id in unordered):
            raise DataError(
                f"{source.name}: all documents of a query have one score, so --depth {depth} would keep documents by "
                "their ids; give a ranked run, or score this one whole"
            )
    cut = run if depth is None else {query_id: head(scores, depth) for query_id, scores in run.items()}
    return cut, unordered


def _refuse_depth(depth: int | None) -> None:
    whole = hasattr(depth, "__index__")
    if depth is not None and (not whole or depth < 1):
        problem = "leaves no document to score" if whole else "is no whole number"
        raise UsageError(f"--depth {depth} {problem}; use at least 1")


def _refuse_empty(name: str, content: Qrels | Run) -> None:
    if not content:
        raise DataError(f"{name}: no line in it; there is nothing to score")
