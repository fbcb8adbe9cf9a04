"""The main score of MTEB's tasks as a metric of ours, with a value for each query or group of queries behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unimoe.core.grouping import gathered
from unimoe.core.trec import Grades
from unimoe.data.mteb_names import random_state_kept
from unimoe.metrics import Scores, score_run

if TYPE_CHECKING:
    from mteb import AbsTask

_OUR_FAMILIES = {
    "ndcg": "ndcg", "map": "map", "mrr": "mrr", "recall": "recall", "precision": "p", "hit_rate": "Success",
}  # fmt: skip
_MERGED = "max_over_subqueries_"
_GROUP_OF: Mapping[str, Callable[[str], str]] = {
    "p-MRR": lambda query: re.sub("-(og|changed)$", "", query),
    "paired_accuracy": lambda query: query.partition("_")[0],
    "robustness_at_10": lambda query: query.partition("_")[0],
}
"""Main scores that are means over groups of queries, with the name of a query's group."""

_PAIRS = "p-MRR"

Ranking = Mapping[str, Mapping[str, float]]


class Group(NamedTuple):
    """Queries that have one value of the main score together."""

    value: float
    queries: list[str]


def ranks_documents(task: AbsTask) -> bool:
    """Return whether a task searches a corpus or ranks candidates, which the driver does, unit by unit."""
    with random_state_kept():
        from mteb.abstasks import AbsTaskRetrieval

    return isinstance(task, AbsTaskRetrieval)


def main_metric(task: AbsTask) -> str:
    """Return the metric that is a task's main score, by our name where the metric is one of a ranking.

    nDCG@10 takes the place of a main score that has no known values by query.
    """
    main = task.metadata.main_score
    if not ranks_documents(task):
        return main
    if metric := _exact_metric("recall_at_1" if main == "accuracy" else main):
        return "map" if metric == "map@1000" else metric  # MTEB's runs are 1000 deep
    return main if _is_grouped(main) else "ndcg@10"


def groups_of(
    main_score: str, qrels: Grades, run: Ranking, score_some: Callable[[Sequence[str]], Mapping[str, Any]]
) -> dict[str, Group]:
    """Return the groups of queries over which MTEB takes the mean of a main score, by name; none of any other score.

    ``qrels`` and ``run`` are of the queries that MTEB scores; ``score_some`` returns the task's own scores of some.
    """
    if not _is_grouped(main_score):
        return {}
    merged = main_score.startswith(_MERGED)
    group_of = (lambda query: query.rpartition("_")[0]) if merged else _GROUP_OF[main_score]
    members = gathered((group_of(query), query) for query in qrels)
    if merged:
        return _best_of_each(main_score, members, qrels, run)
    if main_score == _PAIRS:  # MTEB leaves out a query if the changed one has no relevant document
        members = {group: queries for group, queries in members.items() if len(queries) == 2}
    return {group: Group(float(score_some(queries)[main_score]), queries) for group, queries in members.items()}


def grouped(scores: Scores, metric: str, groups: Mapping[str, Group]) -> Scores:
    """Return scores with groups in place of queries, which have a value of the main metric alone."""
    values = {name: group.value for name, group in groups.items()}
    mean = math.fsum(values.values()) / len(values)
    return Scores({metric: values}, scores.aggregate | {metric: mean}, scores.unjudged_queries)


def _best_of_each(main_score: str, members: Mapping[str, list[str]], qrels: Grades, run: Ranking) -> dict[str, Group]:
    """Score the best place of each document among the rankings of a group, against its judgments, which are alike."""
    metric = _exact_metric(main_score.removeprefix(_MERGED)) or "ndcg@10"
    judged = {
        group: {key: int(grade) for key, grade in qrels[queries[-1]].items()} for group, queries in members.items()
    }
    best: dict[str, dict[str, float]] = {group: {} for group in members}
    for group, queries in members.items():
        for query in queries:
            for document, score in run[query].items():
                best[group][document] = max(float(score), best[group].get(document, -math.inf))
    values = score_run(judged, best, metric).per_query[metric]
    return {group: Group(values[group], queries) for group, queries in members.items()}


def _is_grouped(main_score: str) -> bool:
    return main_score in _GROUP_OF or _exact_metric(main_score.partition(_MERGED)[2]) is not None


def _exact_metric(main_score: str) -> str | None:
    """Return our name of a main score that is a mean over queries; None of any other."""
    family, _, cutoff = main_score.partition("_at_")
    return f"{_OUR_FAMILIES[family]}@{cutoff}" if family in _OUR_FAMILIES and cutoff.isdecimal() else None
