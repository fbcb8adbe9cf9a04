"""What a comparison of run files refuses, what it lets pass at the user's word, and what it warns of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from unimoe.analysis.run_files import RunFiles, ScoredRun, some_ids
from unimoe.errors import DataError, UsageError, did_you_mean
from unimoe.metrics import canonical_metric, metric_cutoff
from unimoe.trec import Qrels

ALLOWANCES = ("queries", "zeros", "depth", "duplicates")


def refuse_wrong_wishes(files: RunFiles) -> None:
    """Refuse what no run could mend, before any file is read.

    Raises:
        UsageError: an unknown metric or allowance, a depth below 1, no files, or one name for both arms.
    """
    canonical_metric(files.metric)
    for name in files.allow:
        if name not in ALLOWANCES:
            raise UsageError(f"--allow {name}: unknown{did_you_mean(name, ALLOWANCES)}; use {', '.join(ALLOWANCES)}")
    if {"queries", "zeros"} <= set(files.allow):
        raise UsageError("--allow queries leaves out what --allow zeros counts as 0; give the one that suits the runs")
    if files.depth is not None and files.depth < 1:
        raise UsageError(f"--depth {files.depth} leaves no document to score; use at least 1")
    if files.specialist_name == files.joint_name:
        raise UsageError(f"both arms are named {files.joint_name!r}; give --specialist-name or --joint-name")
    for arm, paths in files.by_arm.items():
        if not paths:
            raise UsageError(f"no run file of {arm}; give one per seed")


def caveats_of(runs: Sequence[ScoredRun], qrels: Qrels, files: RunFiles) -> tuple[str, ...]:
    """What was allowed and made use of, in words.

    Raises:
        DataError: a run given twice, runs of different depth, or a run that lacks judged queries, unless allowed.
    """
    found = (_duplicates(runs, files.allow), _queries(runs, qrels, files.allow), _depth(runs, files))
    return tuple(caveat for caveat in found if caveat)


def compared_queries(runs: Sequence[ScoredRun], qrels: Qrels, allow: Collection[str]) -> list[str]:
    """The judged queries that count: all of them, or with ``--allow queries`` those that every run has."""
    lacking = {query_id for run in runs for query_id in run.missing} if "queries" in allow else set()
    return [query_id for query_id in qrels if query_id not in lacking]


def uneven(runs: Sequence[ScoredRun], metric: str) -> bool:
    """Whether a metric sees more of one run than of another because their rankings end at different depths."""
    depths, cutoff = {run.depth for run in runs}, metric_cutoff(metric)
    return len(depths) > 1 and (cutoff is None or cutoff > min(depths))


def warnings_of(
    runs: Sequence[ScoredRun], files: RunFiles, judged: Sequence[str], metrics: Sequence[str], texts: Collection[str]
) -> Iterator[str]:
    """What refuses nothing, but should be known before the numbers are believed."""
    for run in runs:
        if run.unjudged:
            yield f"{run.path}: queries without judgments, left out: {some_ids(run.unjudged)}"
        if run.unordered:
            which = some_ids(run.unordered)
            yield f"{run.path}: queries with one score for all documents, which only their ids order: {which}"
    main, deepest = metrics[0], max(run.depth for run in runs)
    cutoff = metric_cutoff(main)
    if cutoff is not None and deepest < cutoff:
        yield f"{main} is computed on rankings that end at depth {deepest}"
    not_shown = [metric for metric in metrics[1:] if uneven(runs, metric)]
    if not_shown:
        yield f"{', '.join(not_shown)} not shown: the runs end at different depths"
    without = [query_id for query_id in judged if query_id not in texts]
    if files.queries is not None and without:
        yield f"{files.queries}: no text of {some_ids(without)}"


def _duplicates(runs: Sequence[ScoredRun], allow: Collection[str]) -> str | None:
    """A run given twice fakes a seed, or a TIR of 0."""
    first: dict[str, ScoredRun] = {}
    twice = [(first[run.digest], run) for run in runs if first.setdefault(run.digest, run) is not run]
    if not twice:
        return None
    found = "; ".join(f"{other.path} holds the same rankings and scores as {one.path}" for one, other in twice)
    if "duplicates" not in allow:
        raise DataError(f"{found}; give every run once, or --allow duplicates")
    return f"{found} (--allow duplicates)"


def _queries(runs: Sequence[ScoredRun], qrels: Qrels, allow: Collection[str]) -> str | None:
    """Queries are neither filled with 0 nor left out in silence: the first favours one arm, the second the other."""
    found = "; ".join(f"{run.path} lacks {some_ids(run.missing)}" for run in runs if run.missing)
    if not found:
        return None
    if "zeros" in allow:
        return f"judged queries that a run lacks count 0 there (--allow zeros): {found}"
    common = len(compared_queries(runs, qrels, ("queries",)))
    if "queries" not in allow:
        raise DataError(
            f"judged queries without documents: {found}; give complete runs, --allow queries to compare on the "
            f"{common:,} that all runs have, or --allow zeros to count them 0 as trec_eval -c does"
        )
    if not common:
        raise DataError(f"no judged query is in every run: {found}; give runs of the same queries")
    return f"compared on the {common:,} of {len(qrels):,} judged queries that all runs have (--allow queries): {found}"


def _depth(runs: Sequence[ScoredRun], files: RunFiles) -> str | None:
    metric = canonical_metric(files.metric)
    if not uneven(runs, metric):
        return None
    shallow, deep = (end(runs, key=lambda run: run.depth) for end in (min, max))
    found = (
        f"{shallow.path} ends at depth {shallow.depth:,}, {deep.path} at {deep.depth:,}, and {metric} looks deeper "
        f"than {shallow.depth:,}"
    )
    if "depth" not in files.allow:
        mend = f"give runs of one depth, cut all with --depth {shallow.depth}, or --allow depth"
        raise DataError(f"{found}; {mend}")
    return f"{found} (--allow depth)"
