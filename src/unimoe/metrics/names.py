"""Names of metrics: ours, trec_eval's and those of ir_measures, and the one under which results hold a metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.limits import name_problem
from unimoe.core.registry import load_plugins

if TYPE_CHECKING:
    from ir_measures import Measure

_CUTOFF = "[1-9][0-9]{0,6}"
_OURS = re.compile(
    rf"(?P<family>ndcg|mrr|map)|(?P<cut>ndcg|mrr|map|recall|recall_cap|recall_of_retrieved|p)@(?P<cutoff>{_CUTOFF})"
)
CAPPED = ("recall_cap", "recall_of_retrieved")
"""Families of recall over the most that could be reached: see the package's description."""

_TREC_EVAL = re.compile(rf"(?P<name>ndcg_cut|map_cut|recall|P|success)[._](?P<cutoff>{_CUTOFF})")
_OF_TREC_EVAL = {"ndcg_cut": "ndcg", "map_cut": "map", "recall": "recall", "P": "p", "success": "Success"}
_UNCUT_OF_TREC_EVAL = {"recip_rank": "mrr", "bpref": "Bpref"}
_OF_IR_MEASURES = {"nDCG": "ndcg", "RR": "mrr", "AP": "map", "R": "recall", "P": "p"}
_MEASURE = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(?:\([^()]{0,200}\))?(?:@(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)?")
_USABLE = (
    "ndcg@K, mrr, mrr@K, map, map@K, recall@K, recall_cap@K, recall_of_retrieved@K or p@K, "
    "or a measure of ir_measures such as RBP(rel=2), ERR@20 or Judged@10"
)
_BOUNDS = dict.fromkeys(("cutoff", "rel", "max_rel"), (1, 9_999_999)) | {
    "min_rel": (0, 9_999_999),
    "p": (0.001, 0.999),
    "recall": (0, 1),
    "beta": (0, 1000),
    "T": (0.001, 9_999_999),
}
"""Of parameters: ir_measures takes any number, and its libraries crash or give NaN."""

_EXAMPLES = {"cutoff": 10, "recall": 0.1, "max_rel": 3}  # of parameters that a measure needs

MeasureFunction = Callable[[Mapping[str, int], Sequence[str]], float]
"""From one query's grades by document id, and the ids that the run ranks, best first, to a value."""


@dataclass(frozen=True)
class Metric:
    """A metric, and what computes it: a plain pass of trec_eval, ir_measures, or a registered function.

    Attributes:
        name: under which results hold it.
        cutoff: how many documents it looks at; None for all of them.
        level: the lowest relevant grade, where the name fixes it.
        binary: whether a relevance level changes it.
        family: of trec_eval's, the short name without the cut-off.
        measure: of ir_measures.
        function: see ``register_measure``.
    """

    name: str
    cutoff: int | None = None
    level: int | None = None
    binary: bool = False
    family: str | None = None
    measure: Measure | None = None
    function: MeasureFunction | None = None


_registered: dict[str, Metric] = {}


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
        _registered[name] = Metric(name, cutoff, function=function)
    else:
        raise UsageError(f"metric {name!r} exists already; choose another name")


def parse_metric(name: str) -> Metric:
    """Find the metric that a name means: a short one, or that of trec_eval or ir_measures.

    Raises:
        UsageError: an unknown metric, with the closest known one; or a measure with wrong parameters.
    """
    if not isinstance(name, str):
        raise UsageError(f"metric {name!r} is no text; write its name, such as 'ndcg@10'")
    load_plugins("unimoe.measures")
    return _registered.get(name) or _known(name)


def canonical_metric(name: str) -> str:
    """Return the name under which results hold a metric.

    It is the short name (``ndcg@10`` of ``ndcg_cut_10`` and ``nDCG@10``) where there is one, else that of ir_measures.
    A level that is written out stays, ``rel=1`` too: ``AP(rel=1)`` is not ``map`` where a collection counts from 2.
    """
    return parse_metric(name).name


@cache
def _known(name: str) -> Metric:
    if ours := _OURS.fullmatch(name):
        return _trec_eval(name, ours["family"] or ours["cut"], int(ours["cutoff"]) if ours["cutoff"] else None)
    if cut := _TREC_EVAL.fullmatch(name):
        return _known(f"{_OF_TREC_EVAL[cut['name']]}@{cut['cutoff']}")
    if name in _UNCUT_OF_TREC_EVAL:
        return _known(_UNCUT_OF_TREC_EVAL[name])
    measure = _parsed(name)
    if measure is None:
        known = _names_like(name)
        hint = did_you_mean(name, known) or did_you_mean(name.lower(), known)
        raise UsageError(f"unknown metric {name!r}{hint}; use {_USABLE}")
    # Without defaults, but with a level that is written out; rel first, so that their order is no other measure.
    infos = measure.SUPPORTED_PARAMS
    keys = sorted(measure.params.keys() & infos.keys(), key=lambda key: (key != "rel", list(infos).index(key)))
    given = {k: measure.params[k] for k in keys if k == "rel" or measure.params[k] != infos[k].default}
    family, cutoff, level = _OF_IR_MEASURES.get(measure.NAME or ""), given.get("cutoff"), given.get("rel")
    if family and given.keys() <= {"cutoff"}:
        return _trec_eval(family if cutoff is None else f"{family}@{cutoff}", family, cutoff)
    spelling = _spelling(measure, given)
    if family and given.keys() <= {"cutoff", "rel"}:
        return _trec_eval(spelling, family, cutoff, level)
    # Some measures (NumRet, RBP) mean something else without a level.
    binary = "rel" in infos and isinstance(infos["rel"].default, int) and "rel" not in measure.params
    return Metric(spelling, measure.params.get("cutoff"), measure.params.get("rel"), binary, measure=measure)


def _trec_eval(name: str, family: str, cutoff: int | None, level: int | None = None) -> Metric:
    return Metric(name, cutoff, level, binary=family != "ndcg" and level is None, family=family)


def _spelling(measure: Any, given: Mapping[str, Any]) -> str:
    """Write a measure as ir_measures does, but with every level that was given."""
    at = f"@{given[measure.AT_PARAM]}" if measure.AT_PARAM in given else ""
    params = [f"{key}={measure._param_repr(value)}" for key, value in given.items() if key != measure.AT_PARAM]
    return f"{measure.NAME}({','.join(params)}){at}" if params else f"{measure.NAME}{at}"


def _parsed(text: str) -> Measure | None:
    """Read a measure as ir_measures writes it; None where it has none of that name. Refuse what it cannot compute."""
    import ir_measures  # takes long to import

    match = _MEASURE.fullmatch(text)
    if match is None or match["name"] not in ir_measures.measures.registry:
        return None
    try:
        measure: Measure = ir_measures.parse_measure(text)
        problem = _problem(measure, text)
    except (ValueError, TypeError):
        problem = "its parameters cannot be read; write them as in RBP(rel=2,p=0.9)"
    if problem:
        raise UsageError(f"metric {text!r}: {problem}")
    return measure


def _problem(measure: Measure, text: str) -> str | None:
    """Return what is wrong with a measure, and what to do; None where nothing is."""
    import ir_measures

    infos: Mapping[str, Any] = measure.SUPPORTED_PARAMS
    takes = ", ".join(infos) or "none"
    if len(measure.params) < text.count("=") + text.count("@"):
        return "a parameter is given twice; write it once"
    for key, value in measure.params.items():
        if key not in infos:
            return f"{measure.NAME} has no parameter {key!r}{did_you_mean(key, infos)}; it has {takes}"
        if infos[key].dtype is float and type(value) is int:
            measure.params[key] = value = float(value)
        low, high = _BOUNDS.get(key, (None, None))
        fits = type(value) is infos[key].dtype and infos[key].validate(value)
        if not fits or (low is not None and not low <= value <= high):
            wanted = infos[key].dtype.__name__ + (f" from {low} to {high}" if key in _BOUNDS else "")
            choices = infos[key].choices
            listed = f": {', '.join(map(repr, choices))}" if isinstance(choices, list | tuple) else ""
            return f"{key}={value!r} will not do; it must be of type {wanted}{listed}"
        if key == "recall" and round(value, 2) != value:
            return f"{key}={value!r} has more than two decimals, which trec_eval does not tell apart; round it"
    missing = {key: _EXAMPLES[key] for key, info in infos.items() if info.required and key not in measure.params}
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        return f"{' and '.join(missing)} {verb} missing; write {_spelling(measure, {**measure.params, **missing})}"
    low, high = measure.params.get("min_rel", 0), measure.params.get("max_rel", 1)
    if low >= high:
        return f"min_rel={low} is not below max_rel={high}; raise max_rel to the highest grade"
    if measure.NAME in {supported.NAME for supported in ir_measures.pyndeval.SUPPORTED_MEASURES}:
        return f"{measure.NAME} needs judgments by subtopic, and qrels here have none; use another measure"
    if measure.NAME == "Accuracy":
        return "ir_measures leaves out queries on which it is not defined; use another measure"
    if not any(provider.supports(measure) for provider in ir_measures.DefaultPipeline.providers):
        return f"nothing computes it as written; add a parameter, or leave one out (it has {takes})"
    return None


def _names_like(name: str) -> list[str]:
    """Return known names, with the cut-off of an unknown one where it has any."""
    import ir_measures

    found = re.search(rf"(?<![0-9]){_CUTOFF}$", name)
    cutoff = found[0] if found else "10"
    ours = [f"{family}@{cutoff}" for family in ("mrr", "ndcg", "recall", "p", "map", *CAPPED)]
    of_trec_eval = [f"{base}_{cutoff}" for base in ("ndcg_cut", "P", "map_cut")]
    of_ir_measures = [
        f"{key}@{cutoff}" if "cutoff" in measure.SUPPORTED_PARAMS else key
        for key, measure in ir_measures.measures.registry.items()
    ]
    return [*_registered, "mrr", "map", *ours, "recip_rank", *of_trec_eval, *of_ir_measures]
