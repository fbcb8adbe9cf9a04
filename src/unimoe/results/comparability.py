"""The checks that results may be compared: they were measured alike, or their difference was allowed by name.

An allowed difference becomes a caveat of every result it touches, and each table, figure, verdict and report shows it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from unimoe.checks import Check, lines
from unimoe.checks.rankings import ties_in, ties_of_systems
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.results import TASKS, EvalResult

ALLOWANCES = {  # the differences that can be allowed by name, and what each means
    "queries": "arms judged on different queries are compared on those that all of them share",
    "candidates": "other candidates: their hash, first stage, pool or passages, or whether one may have the query's id",
    "metrics": "other main metrics; arms are compared on one that all of them hold",
    "max_queries": "queries cut to another number",
    "depth": "another number of candidates per query",
    "collections": "another collection or split of the same name",
    "duplicates": "one checkpoint, or one run, under several seeds of an arm",
}


class _Rule(NamedTuple):
    """A property that must agree; ``allowance`` is the name that lifts the rule, None where nothing does."""

    what: str
    value_of: Callable[[EvalResult], Any]
    allowance: str | None = None
    none_agrees: bool = False


def _hash(name: str) -> Callable[[EvalResult], str | None]:
    return lambda result: result.provenance.hashes.get(name)


_EXPERIMENT = _Rule("experiment", attrgetter("identity.experiment"))
_BASE_MODEL = _Rule("base model", attrgetter("identity.base_model"), none_agrees=True)  # BM25 has none
_PROMPT = _Rule("prompt", attrgetter("identity.prompt"), none_agrees=True)
_CHECKPOINT = _Rule("checkpoint", attrgetter("identity.checkpoint"))
_METRIC = _Rule("main metric", attrgetter("main_metric"), "metrics")
_PASSAGES = _Rule("passages", attrgetter("identity.passages"), "candidates")
_ONE_DATASET = (
    _Rule("task type", attrgetter("task_type"), none_agrees=True),
    _METRIC,
    _Rule("relevance level", attrgetter("relevance_level")),
    _Rule("split", attrgetter("identity.split"), "collections"),
    _Rule("pool", attrgetter("identity.pool"), "candidates"),
    _Rule("max_queries", attrgetter("identity.max_queries"), "max_queries"),
    _Rule("collection hash", _hash("collection"), "collections", none_agrees=True),
    _Rule("identical_ids", _hash("identical_ids"), "candidates"),
    _Rule("candidates hash", _hash("candidates"), "candidates", none_agrees=True),
)
_WHERE_RERANKED = (  # elsewhere the first stage is the system under test
    _Rule("first_stage", attrgetter("identity.first_stage"), "candidates"),
    _Rule("depth", attrgetter("identity.depth"), "depth"),
    _PASSAGES,
)
_ON_TASK = {"reranking": _WHERE_RERANKED, "embedding": (_PASSAGES,)}


def comparable(where: str, results: Sequence[EvalResult], allow: Collection[str] = ()) -> list[EvalResult]:
    """Return results as they may be compared: of one experiment, and per dataset on the same queries and metric.

    There is at most one result of each arm, seed, task and dataset; ``where`` is what they were read from. Where other
    queries are allowed, all are cut to those that all arms share; other main metrics are exchanged for one that all
    hold. An unknown name in ``allow`` is a UsageError, and what differs without being allowed a DataError.
    """
    for name in allow:
        if name not in [*ALLOWANCES]:  # an unhashable one too
            hint = did_you_mean(name, ALLOWANCES)
            raise UsageError(f"--allow {name}: no such difference{hint}; known are {', '.join(ALLOWANCES)}")
    of_base = [r for r in results if not r.beside_arms]
    _agrees(_EXPERIMENT, where, results, allow)
    _agrees(_BASE_MODEL, where, of_base, allow)
    for task in TASKS:  # MTEB's tasks have an instruction each: there the prompt agrees by dataset alone
        _agrees(_PROMPT, f"{where}, {task}", [r for r in of_base if r.task == task and r.task_type is None], allow)
    by_key = gathered((result.key, result) for result in results)
    return [result for key, group in by_key.items() for result in _on_one_dataset(key, group, allow)]


def refuse_other_data(key: str, results: Sequence[EvalResult]) -> None:
    """Refuse rerankings of several models of other queries, candidates or judgments by a DataError that says which."""
    for rule in (*_ONE_DATASET, *_WHERE_RERANKED):
        if rule != _METRIC and (difference := _difference(rule, results)):
            raise DataError(f"{key}: {difference}; evaluate all of them on the same data, with the same settings")


OF_RESULT = "evaluation"
"""The name of checks that an earlier result says of all its scores."""

_UNREAD = 0.1
"""Share of a model's answers from which it is said that they could not be read."""


def remarks(results: Iterable[EvalResult]) -> list[str]:
    """Return what the doors' caveats say of some results; of the equal scores of many runs one line for a dataset."""
    said, results = list[str](), [*results]
    for r in results:
        said += lines(_apart_from_ties(r), "caveat")
    for (key, metric), of_key in gathered(((r.key, r.main_metric), r) for r in results).items():
        of_systems = ((r.config_name, r.per_query.values(), r.checks) for r in of_key)
        said += lines(ties_of_systems(of_systems, metric, key), "caveat")
    return said


def caveats_of(result: EvalResult) -> list[str]:
    """Return what to read the scores of one result with, why they are unfit for decisions included."""
    return list(dict.fromkeys([*result.caveats, *remarks([result])]))


def caveats_of_run(result: EvalResult) -> list[Check]:
    """Return the caveats of the result of a run, which travel with the run wherever it is compared."""
    unfit = (Check(OF_RESULT, "caveat", caveat, unfit=True) for caveat in result.caveats)
    others = (check for check in _apart_from_ties(result) if check.line not in result.caveats)
    return [*unfit, *(check for check in others if check.weight == "caveat")]


def _apart_from_ties(result: EvalResult) -> list[Check]:
    """Return what was found, but for equal scores, which are said of all runs together."""
    ties = ties_in(result.checks)
    return [*(check for check in result.checks if check not in ties), *_unread(result)]


def _unread(result: EvalResult) -> list[Check]:
    """Return what to know of a model whose answers could not be read, or had no end, so that others rank for it."""
    usage = result.provenance.usage
    answers = usage.get("answers", 0.0)
    meaning = {"unparsable answers": "they leave the order as it was", "truncated thoughts": "raise listwise.thought"}
    where = f"{result.key}, {name_of(result)}"
    return [
        Check("answers", "caveat", f"{where}: {name} {usage[name]:,.0f} of {answers:,.0f}: {means}")
        for name, means in meaning.items()
        if usage.get(name, 0.0) > _UNREAD * answers
    ]


def refuse_other_labels(key: str, results: Sequence[EvalResult], *, in_clusters: bool) -> None:
    """Refuse results of one ``task/dataset`` that a model's judgments estimate in different ways, by a DataError."""
    predicted = [r.predicted for r in results]
    first = predicted[0]
    if any((one is None) != (first is None) for one in predicted) or any(
        one and first and (one.hash, one.queries, one.weights) != (first.hash, first.queries, first.weights)
        for one in predicted
    ):
        raise DataError(f"{key}: results with other predicted judgments, or none; compare all of them together again")
    if first and in_clusters:
        raise UsageError(f"{key}: predicted judgments are of single queries; leave out --clusters")


def name_of(result: EvalResult) -> str:
    """Return arm and seed, as messages call them."""
    return result.config_name if result.seed is None else f"{result.config_name} seed {result.seed}"


def _on_one_dataset(key: str, results: list[EvalResult], allow: Collection[str]) -> list[EvalResult]:
    rules = (*_ONE_DATASET, *_ON_TASK.get(results[0].task, ()))
    caveats = [_agrees(rule, key, results, allow) for rule in rules]
    _agrees(_PROMPT, key, [r for r in results if not r.beside_arms], allow)
    _agrees(_CHECKPOINT, key, [r for r in results if r.identity.checkpoint != "none"], allow)
    caveats.append(_repeated(key, results, allow))
    results, caveat = _on_shared_queries(key, _on_one_metric(key, results), allow)
    found = [caveat for caveat in (*caveats, caveat) if caveat]
    if not found:
        return results
    return [r.model_copy(update={"caveats": list(dict.fromkeys([*r.caveats, *found]))}) for r in results]


def with_metrics(result: EvalResult, metrics: Sequence[str]) -> EvalResult:
    """Return a result with these metrics alone, the first of them the main one; a DataError where it lacks one."""
    if not metrics:
        return result
    means = {metric: result.aggregate[metric] for metric in metrics if metric in result.aggregate}
    return _view(result, metrics, result.per_query).model_copy(update={"aggregate": means})


def _view(result: EvalResult, metrics: Iterable[str], queries: Iterable[str]) -> EvalResult:
    """Return a result with these metrics of these queries, the first metric the main one."""
    main, *others = dict.fromkeys(metrics)
    ids = sorted(queries)
    columns = {metric: [values[q] for q in ids] for metric in (main, *others) for values in [result.metric(metric)]}
    per_query = dict(zip(ids, columns.pop(main), strict=True))
    update = {"main_metric": main, "per_query": per_query, "per_query_metrics": columns}
    kept = result.otherwise if main == result.main_metric else {}
    update["otherwise"] = {name: {q: of[q] for q in ids if q in of} for name, of in kept.items()}
    return result.model_copy(update=update)


def _difference(rule: _Rule, results: Iterable[EvalResult]) -> str | None:
    found = gathered((value, name_of(r)) for r in results for value in [rule.value_of(r)])
    if rule.none_agrees:
        found.pop(None, None)
    if len(found) < 2:
        return None
    return f"{rule.what} differs: " + "; ".join(f"{v!r} in {_some(names, 3)}" for v, names in found.items())


def _agrees(rule: _Rule, where: str, results: Iterable[EvalResult], allow: Collection[str]) -> str | None:
    """Refuse results that differ; return the difference as a caveat where it is allowed."""
    difference = _difference(rule, results)
    remedy = "results of one --output-dir must be measured alike, move the others elsewhere or evaluate again"
    return None if difference is None else _allowed(f"{where}: {difference}", remedy, rule.allowance, allow)


def _allowed(found: str, remedy: str, name: str | None, allow: Collection[str]) -> str:
    """Return what was found as a caveat where it is allowed by name; refuse it elsewhere."""
    if name in allow:
        return f"{found} (allowed by name: {name})"
    raise DataError(f"{found}; {remedy}" + (f", or compare all the same with --allow {name}" if name else ""))


def _repeated(key: str, results: Iterable[EvalResult], allow: Collection[str]) -> str | None:
    """Refuse one checkpoint or run under two seeds of an arm, which fakes a seed; return it as a caveat if allowed."""
    holders = gathered(
        ((result.config_name, what, result.provenance.hashes[what]), name_of(result))
        for result in results
        for what in ("checkpoint", "run")
        if what in result.provenance.hashes and result.seed is not None
    )
    found = "; ".join(
        f"{_some(names, 4)} are one {what}, content hash {content}"
        for (_, what, content), names in holders.items()
        if len(names) > 1
    )
    remedy = "keep one of them, or train the other seeds"
    return _allowed(f"{key}: {found}", remedy, "duplicates", allow) if found else None


def _on_one_metric(key: str, results: list[EvalResult]) -> list[EvalResult]:
    """Return results with the main metric that most have, of those that all hold, by query where there are queries."""
    usual = [metric for metric, _ in Counter(r.main_metric for r in results).most_common()]
    if len(usual) == 1:
        return results
    by_query = bool(results[0].per_query)
    shared = set.intersection(*({r.main_metric, *(r.per_query_metrics if by_query else r.aggregate)} for r in results))
    chosen = next((metric for metric in usual if metric in shared), None)
    if chosen is None:
        held = "holds by query" if by_query else "holds"
        raise DataError(f"{key}: no main metric ({', '.join(usual)}) that every result {held}; evaluate again")
    if not by_query:
        return [r.model_copy(update={"main_metric": chosen}) for r in results]
    return [_view(r, (chosen, r.main_metric, *r.per_query_metrics), r.per_query) for r in results]


def _on_shared_queries(
    key: str, results: list[EvalResult], allow: Collection[str]
) -> tuple[list[EvalResult], str | None]:
    """Return results as if measured on the queries that all hold, with a caveat; refuse others unless allowed."""
    here = results[0]
    there = next((r for r in results if r.per_query.keys() != here.per_query.keys()), None)
    if there is None:
        return results, None
    if not here.per_query.keys() - there.per_query.keys():
        here, there = there, here
    missing = sorted(here.per_query.keys() - there.per_query.keys())
    _allowed(
        f"{key}: {name_of(there)} lacks {len(missing):,} of the {len(here.per_query):,} queries of {name_of(here)} "
        f"({_some([repr(q) for q in missing], 10)})",
        "arms are compared on the same queries only, evaluate again",
        "queries",
        allow,
    )
    shared = set.intersection(*(set(r.per_query) for r in results))
    if not shared:
        raise DataError(f"{key}: no query that every result was judged on; evaluate the arms on the same queries")
    missing = sorted(set().union(*(r.per_query for r in results)) - shared)
    caveat = (
        f"{key}: compared on the {len(shared):,} queries that all arms share (allowed by name: queries); "
        f"{len(missing):,} left out: {_some(missing, 10)}"
    )
    return [r if r.per_query.keys() == shared else _cut(r, shared) for r in results], caveat


def _cut(result: EvalResult, queries: Collection[str]) -> EvalResult:
    cut = _view(result, (result.main_metric, *result.per_query_metrics), queries)
    columns = {cut.main_metric: [*cut.per_query.values()], **cut.per_query_metrics}
    means = {metric: math.fsum(values) / len(values) for metric, values in columns.items()}
    return cut.model_copy(update={"aggregate": means, "first_stage": None})


def _some(names: Sequence[str], limit: int) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
