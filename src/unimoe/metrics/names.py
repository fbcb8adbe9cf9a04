"""Names of metrics: ours, trec_eval's and those of ir_measures, and the one under which results hold a metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.limits import name_problem
from unimoe.core.registry import load_plugins

if TYPE_CHECKING:
    from ir_measures import Measure

_CUTOFF = "[1-9][0-9]{0,6}"
_OURS = re.compile(rf"(?P<family>ndcg|mrr|map|recall|recall_cap|recall_of_retrieved|p)(?:@(?P<cutoff>{_CUTOFF}))?")
_ONLY_CUT = ("recall", "recall_cap", "recall_of_retrieved", "p")
CAPPED = ("recall_cap", "recall_of_retrieved")
"""Families of recall over the most that could be reached: see the package's description."""

_TREC_EVAL = re.compile(rf"(?P<name>ndcg_cut|map_cut|recall|P|success)[._](?P<cutoff>{_CUTOFF})")
_CUT_BY_TREC_EVAL = {"ndcg_cut": "ndcg", "map_cut": "map", "recall": "recall", "P": "p", "success": "Success"}
_UNCUT_BY_TREC_EVAL = {"recip_rank": "mrr", "bpref": "Bpref"}
_OF_IR_MEASURES = {"nDCG": "ndcg", "RR": "mrr", "AP": "map", "R": "recall", "P": "p"}
_USABLE = (
    "ndcg@K, mrr, mrr@K, map, map@K, recall@K, recall_cap@K, recall_of_retrieved@K or p@K, "
    "or a measure of ir_measures such as RBP(rel=2), ERR@20 or Judged@10"
)


@dataclass(frozen=True)
class TrecEvalMetric:
    """A metric that a plain pass of trec_eval computes.

    Attributes:
        name: under which results hold it.
        family: its short name without the cut-off.
        cutoff: how many documents it looks at; None for all of them.
        level: the lowest relevant grade, where the name fixes it.
    """

    name: str
    family: str
    cutoff: int | None
    level: int | None = None

    @property
    def binary(self) -> bool:
        """Whether a relevance level changes it."""
        return self.family != "ndcg" and self.level is None


@dataclass(frozen=True)
class OtherMetric:
    """A metric that ir_measures computes.

    Attributes:
        name: under which results hold it.
        measure: what ir_measures calls the measure itself.
    """

    name: str
    measure: Measure

    @property
    def cutoff(self) -> int | None:
        """How many documents it looks at; None for all of them."""
        cutoff: int | None = self.measure.params.get("cutoff")
        return cutoff

    @property
    def level(self) -> int | None:
        """The lowest relevant grade, where the name fixes it."""
        level: int | None = self.measure.params.get("rel")
        return level

    @property
    def binary(self) -> bool:
        """Whether a relevance level changes it. Some measures (NumRet, RBP) mean something else without a level."""
        rel = self.measure.SUPPORTED_PARAMS.get("rel")
        return rel is not None and isinstance(rel.default, int) and "rel" not in self.measure.params


@dataclass(frozen=True)
class FunctionMetric:
    """A metric registered with ``register_measure``. Fields are documented there."""

    name: str
    function: MeasureFunction
    cutoff: int | None = None
    binary: bool = False
    level: int | None = None


MeasureFunction = Callable[[Mapping[str, int], Sequence[str]], float]
"""From one query's grades by document id, and the ids that the run ranks, best first, to a value."""

Metric = TrecEvalMetric | OtherMetric | FunctionMetric

_registered: dict[str, FunctionMetric] = {}


def register_measure(name: str, function: MeasureFunction, *, cutoff: int | None = None) -> None:
    """Make a measure of your own usable wherever a metric is named.

    Args:
        name: the name in configs, options and results, such as ``first_relevant``.
        function: called once for each judged query; the value of a run is the mean.
        cutoff: how many documents of a ranking the measure looks at; None for all of them.

    Raises:
        UsageError: the name already means a metric, or cannot be one; or the function is none.
    """
    problem = name_problem(name) or ("" if callable(function) else f"has a {type(function).__name__} as its function")
    if problem:
        raise UsageError(f"metric {name!r} {problem}; give a name and a function")
    try:
        _registered.get(name) or _known(name)
    except UsageError:
        _registered[name] = FunctionMetric(name, function, cutoff)
    else:
        raise UsageError(f"metric {name!r} exists already; choose another name")


def canonical_metric(name: str) -> str:
    """Return the name under which results hold a metric.

    Args:
        name: a short name (``ndcg@10``), trec_eval's (``ndcg_cut_10``) or that of ir_measures (``nDCG@10``).

    Returns:
        The short name where the metric has one, else that of ir_measures in its own spelling. A level that is written
        out stays, ``rel=1`` too: ``AP(rel=1)`` is not ``map`` where a collection counts from grade 2.

    Raises:
        UsageError: an unknown metric, with the closest known one; or a measure with wrong parameters.
    """
    return parse_metric(name).name


def metric_cutoff(name: str) -> int | None:
    """Return how many documents of a ranking a metric looks at; None for all of them.

    Raises:
        UsageError: as in ``canonical_metric``.
    """
    return parse_metric(name).cutoff


def is_binary(name: str) -> bool:
    """Return whether a metric depends on a relevance level that its name does not fix.

    Raises:
        UsageError: as in ``canonical_metric``.
    """
    return parse_metric(name).binary


def lowest_relevant(name: str, level: int) -> int:
    """Return the lowest grade that a metric counts as relevant: its name's, else the given one where it depends on one.

    Raises:
        UsageError: as in ``canonical_metric``.
    """
    metric = parse_metric(name)
    return metric.level or (level if metric.binary else 1)


def parse_metric(name: str) -> Metric:
    """Find the metric that a name means.

    Raises:
        UsageError: as in ``canonical_metric``.
    """
    if not isinstance(name, str):
        raise UsageError(f"metric {name!r} is no text; write its name, such as 'ndcg@10'")
    load_plugins("unimoe.measures")
    return _registered.get(name) or _known(name)


@cache
def _known(name: str) -> Metric:
    metric = _ours(name) or _of_trec_eval(name) or _of_ir_measures(name)
    if metric is None:
        known = _names_like(name)
        hint = did_you_mean(name, known) or did_you_mean(name.lower(), known)
        raise UsageError(f"unknown metric {name!r}{hint}; use {_USABLE}")
    return metric


def _ours(name: str) -> TrecEvalMetric | None:
    match = _OURS.fullmatch(name)
    if match is None or (match["cutoff"] is None and match["family"] in _ONLY_CUT):
        return None
    return TrecEvalMetric(name, match["family"], int(match["cutoff"]) if match["cutoff"] else None)


def _of_trec_eval(name: str) -> Metric | None:
    match = _TREC_EVAL.fullmatch(name)
    if match is not None:
        return parse_metric(f"{_CUT_BY_TREC_EVAL[match['name']]}@{match['cutoff']}")
    return parse_metric(_UNCUT_BY_TREC_EVAL[name]) if name in _UNCUT_BY_TREC_EVAL else None


def _of_ir_measures(name: str) -> Metric | None:
    from unimoe.metrics.measures import given_params, parse_measure, spelling  # the library takes long to import

    measure = parse_measure(name)
    if measure is None:
        return None
    family, given = _OF_IR_MEASURES.get(measure.NAME or ""), given_params(measure)
    if family is None or not given.keys() <= {"cutoff", "rel"}:
        return OtherMetric(spelling(measure), measure)
    cutoff, level = given.get("cutoff"), given.get("rel")
    short = family if cutoff is None else f"{family}@{cutoff}"
    return TrecEvalMetric(short if level is None else spelling(measure), family, cutoff, level)


def _names_like(name: str) -> list[str]:
    """Return known names, with the cut-off of an unknown one where it has any."""
    from unimoe.metrics.measures import measure_names

    found = re.search(rf"(?<![0-9]){_CUTOFF}$", name)
    cutoff = found[0] if found else "10"
    ours = ["mrr", "map", *(f"{family}@{cutoff}" for family in ("mrr", "ndcg", "recall", "p", "map", *CAPPED))]
    of_trec_eval = ["recip_rank", *(f"{base}_{cutoff}" for base in ("ndcg_cut", "P", "map_cut"))]
    return [*_registered, *ours, *of_trec_eval, *measure_names(f"@{cutoff}")]
