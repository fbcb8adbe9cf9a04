"""Names of metrics: ours, trec_eval's and those of ir_measures, and the one under which results hold a metric."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.limits import name_problem
from unimoe.core.registry import load_plugins

if TYPE_CHECKING:
    from ir_measures import Measure

_CUTOFF = "[1-9][0-9]{0,6}"
CAPPED = ("recall_cap", "recall_of_retrieved")
"""Families of recall over the most that could be reached: see the package's description."""

TREC_EVAL = {
    "ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "p": "P", "mrr": "recip_rank",
    "gm_map": "gm_map", "11pt_avg": "11pt_avg", "num_rel_ret": "num_rel_ret", "NumRel": "num_rel",
}  # fmt: skip
"""From the other families to trec_eval's names; without a cut-off it writes no ``_cut``."""

_ALONE = ("ndcg", "mrr", "map", "gm_map", "11pt_avg", "num_rel_ret")
_WITH_CUTOFF = ("ndcg", "mrr", "map", "recall", "p", *CAPPED)
_OF_IR_MEASURES = {
    "nDCG": "ndcg", "RR": "mrr", "AP": "map", "R": "recall", "P": "p", "NumRel": "NumRel", "Accuracy": "Accuracy",
}  # fmt: skip

_OTHER_SPELLINGS = {
    "recip_rank": "mrr", "bpref": "Bpref", "num_q": "NumQ", "num_ret": "NumRet", "num_rel": "NumRel",
    "set_P": "SetP", "set_recall": "SetR", "set_F": "SetF", "set_map": "SetAP", "set_relative_P": "SetP(relative=True)",
}  # fmt: skip
_OTHER_SPELLINGS_WITH_CUTOFF = {
    **{family: family for family in _WITH_CUTOFF}, "ndcg_cut": "ndcg", "map_cut": "map", "recip_rank": "mrr", "P": "p",
    "precision": "p", "R_cap": "recall_cap", "success": "Success", "hit_rate": "Success", "strec": "StRecall",
}  # fmt: skip
"""Of trec_eval (``P_5``, ``success.1``), mteb and sentence-transformers (``precision_at_5``), and ndeval."""

_AT = re.compile(rf"(?P<base>[A-Za-z_]+?)(?:@|_at_|[_.])(?P<cutoff>{_CUTOFF})")
_MEASURE = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(?:\([^()]{0,200}\))?(?:@(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)?")
_OF_SUBTOPICS = {*("alpha_DCG", "alpha_nDCG", "ERR_IA", "nERR_IA", "NRBP", "nNRBP", "AP_IA", "P_IA", "StRecall")}
_BOUNDS = dict.fromkeys(("cutoff", "rel", "max_rel"), (1, 9_999_999)) | {
    "min_rel": (0, 9_999_999),
    "p": (0.001, 0.999),
    "recall": (0, 1),
}
"""Of parameters: ir_measures takes any number, and its libraries crash or give NaN."""

MetricLike: TypeAlias = "str | Measure"
"""A metric as Python code names it: in any spelling that ``canonical_metric`` knows, or an object of ir_measures."""

MeasureFunction = Callable[[Mapping[str, Any], Sequence[str]], float]
"""From one query's grades by document id, and the ids that the run ranks, best first, to a value."""


@dataclass(frozen=True)
class Metric:
    """A metric, and what computes it: a plain pass of trec_eval, ir_measures, or a registered function.

    Attributes:
        name: under which results hold it.
        cutoff: how many documents it looks at; None for all of them.
        level: the lowest relevant grade, where the name fixes it.
        binary: whether a relevance level changes it.
        family: of trec_eval's and of those computed here, the short name without the cut-off.
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

    @property
    def of_subtopics(self) -> bool:
        """Whether it needs to know which subtopics of a query a document is relevant to."""
        return self.measure is not None and self.measure.NAME in _OF_SUBTOPICS

    @property
    def is_linear(self) -> bool:
        """Whether it takes any number as a grade: nDCG, with the grade as gain, and registered functions."""
        return (
            self.family == "ndcg"
            or self.function is not None
            or (
                self.measure is not None
                and self.measure.NAME == "nDCG"
                and self.measure.params.keys() <= {"cutoff", "judged_only"}
            )
        )

    @property
    def is_of_level(self) -> bool:
        """Whether all it asks of a grade is whether a level is reached, or whether there is one."""
        name = self.measure.NAME if self.measure is not None else None
        return self.binary or self.level is not None or name in ("NumRet", "NumQ", "Judged")

    def of_run(self, values: Collection[float]) -> float:
        """Return the value of a run, of its queries': the mean; of counts the sum, of gm_map the geometric mean."""
        counts = self.family in ("NumRel", "num_rel_ret") or (
            self.measure is not None and str(self.measure)[:3] == "Num"
        )
        total = math.fsum(values)
        if counts:
            return total
        return math.exp(total / len(values)) if self.family == "gm_map" else total / len(values)


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
    if problem := name_problem(name) or ("" if callable(function) else "has no function"):
        raise UsageError(f"metric {name!r} {problem}; give a name and a function")
    try:
        _registered.get(name) or _known(name)
    except UsageError:
        _registered[name] = Metric(name, cutoff, function=function)
    else:
        raise UsageError(f"metric {name!r} exists already; choose another name")


def parse_metric(name: MetricLike) -> Metric:
    """Find the metric that is meant: by a short name, that of trec_eval or ir_measures, or an object of the latter.

    Raises:
        UsageError: an unknown metric, with the closest known one; or a measure with wrong parameters.
    """
    if not isinstance(name, str):
        import ir_measures  # takes long to import

        if not isinstance(name, ir_measures.Measure):
            raise UsageError(f"metric {name!r} is no text; write its name, such as 'ndcg@10'")
        name = _spelling(name, name.params)  # its own str() leaves out AP's rel=1, which is another metric than map
    load_plugins("unimoe.measures")
    return _registered.get(name) or _known(name)


def canonical_metric(name: MetricLike) -> str:
    """Return the name under which results hold a metric.

    It is the short name (``ndcg@10`` of ``ndcg_cut_10`` and ``nDCG@10``) where there is one, else that of ir_measures.
    A level that is written out stays, ``rel=1`` too: ``AP(rel=1)`` is not ``map`` where a collection counts from 2.
    """
    return parse_metric(name).name


def canonical_metrics(metrics: MetricLike | Iterable[MetricLike]) -> tuple[str, ...]:
    """Return the canonical names of one metric or several, each once."""
    names = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else metrics
    return tuple(dict.fromkeys(canonical_metric(name) for name in names))


@cache
def _known(name: str) -> Metric:
    name = _usual(name)
    family, at, depth = name.partition("@")
    if family in (_WITH_CUTOFF if at else _ALONE) and (not at or re.fullmatch(_CUTOFF, depth)):
        return _trec_eval(name, family, int(depth) if at else None)
    measure = _parsed(name)
    # Without defaults, but with a level that is written out; rel first, so that their order is no other measure.
    infos = measure.SUPPORTED_PARAMS
    keys = sorted(measure.params.keys() & infos.keys(), key=lambda key: (key != "rel", list(infos).index(key)))
    given = {k: measure.params[k] for k in keys if k == "rel" or measure.params[k] != infos[k].default}
    ours, cutoff, level = _OF_IR_MEASURES.get(measure.NAME or ""), given.get("cutoff"), given.get("rel")
    spelling = _spelling(measure, given)
    if ours and given.keys() <= {"cutoff", "rel"}:
        short = ours if cutoff is None else f"{ours}@{cutoff}"
        return _trec_eval(spelling if level else short, ours, cutoff, level)
    # Some measures (NumRet, RBP) mean something else without a level.
    binary = "rel" in infos and isinstance(infos["rel"].default, int) and "rel" not in measure.params
    return Metric(spelling, measure.params.get("cutoff"), measure.params.get("rel"), binary, measure=measure)


def _usual(name: str) -> str:
    """Return the name that is ours or that of ir_measures, of one as trec_eval, ndeval, mteb or others write it."""
    if found := _AT.fullmatch(name):
        base, cutoff = found["base"], found["cutoff"]
        if base == "accuracy" and "_at_" not in name:
            raise UsageError(
                f"metric {name!r} has two meanings: write Success@{cutoff} for a relevant document among the first "
                f"{cutoff}, as sentence-transformers does, or Accuracy@{cutoff} for ir_measures' share of ordered pairs"
            )
        family = "Success" if base == "accuracy" else _OTHER_SPELLINGS_WITH_CUTOFF.get(base)
        return f"{family}@{cutoff}" if family else name
    if found := re.fullmatch(r"iprec_at_recall[_.]([01]\.[0-9]+)", name):
        return f"IPrec@{found[1]}"
    name = re.sub(r"^(alpha|n?ERR|P|M?AP)-(?=[A-Za-z])", r"\1_", name)
    return _OTHER_SPELLINGS.get(name, name)


def _trec_eval(name: str, family: str, cutoff: int | None, level: int | None = None) -> Metric:
    return Metric(name, cutoff, level, binary=family != "ndcg" and level is None, family=family)


def _spelling(measure: Any, given: Mapping[str, Any]) -> str:
    """Write a measure as ir_measures does, but with every level that was given."""
    at = f"@{given[measure.AT_PARAM]}" if measure.AT_PARAM in given else ""
    params = [f"{key}={measure._param_repr(value)}" for key, value in given.items() if key != measure.AT_PARAM]
    return f"{measure.NAME}({','.join(params)}){at}" if params else f"{measure.NAME}{at}"


def _parsed(text: str) -> Measure:
    """Read a measure as ir_measures writes it; refuse what it does not know or cannot compute."""
    import ir_measures  # takes long to import

    match = _MEASURE.fullmatch(text)
    if match is None or match["name"] not in ir_measures.measures.registry:
        raise _unknown(text)
    try:
        measure: Measure = ir_measures.parse_measure(text)
        problem = _problem(measure)
    except (ValueError, TypeError):
        problem = "its parameters cannot be read; write them as in RBP(rel=2,p=0.9)"
    if problem:
        raise UsageError(f"metric {text!r}: {problem}")
    return measure


def _unknown(text: str) -> UsageError:
    """Return the error of a name that means nothing, with the closest that does, at the same cut-off."""
    from ir_measures.measures import registry

    found = re.search(rf"(?<![0-9]){_CUTOFF}$", text)
    cutoff = found[0] if found else "10"
    ours = [f"{base}@{cutoff}" for base in (*_WITH_CUTOFF, "success", "hit_rate")]
    ours += [f"{base}_{cutoff}" for base in ("ndcg_cut", "P", "map_cut", "ndcg_at", "map_at", "mrr_at", "recall_at")]
    others = [f"{key}@{cutoff}" if "cutoff" in kind.SUPPORTED_PARAMS else key for key, kind in registry.items()]
    known = [*_registered, *_ALONE, *_OTHER_SPELLINGS, "iprec_at_recall_0.10", *ours, *others]
    whole = [key for key, kind in registry.items() if not any(i.required for i in kind.SUPPORTED_PARAMS.values())]
    same = [name for name in (*known, *whole) if name.lower() == text.lower()]  # but for case
    hint = did_you_mean(same[0] if same else text, known + same) or did_you_mean(text.lower(), known)
    return UsageError(
        f"unknown metric {text!r}{hint}; use ndcg@K, mrr, mrr@K, map, map@K, recall@K, recall_cap@K, "
        "recall_of_retrieved@K, p@K or success@K, a measure of trec_eval such as gm_map or set_recall, or one of "
        "ir_measures such as RBP(rel=2), ERR@20 or Judged@10"
    )


def _problem(measure: Measure) -> str | None:
    """Return what is wrong with a measure, and what to do; None where nothing is."""
    import ir_measures

    infos: Mapping[str, Any] = measure.SUPPORTED_PARAMS
    takes = f"it has {', '.join(infos) or 'none'}"
    for key, value in measure.params.items():
        if key not in infos:
            return f"{measure.NAME} has no parameter {key!r}{did_you_mean(key, infos)}; {takes}"
        kind, choices = infos[key].dtype, infos[key].choices
        if kind is float and type(value) is int:
            measure.params[key] = value = float(value)
        low, high = _BOUNDS.get(key, (None, None))
        fits = type(value) is kind and infos[key].validate(value) and (low is None or low <= value <= high)
        if not fits or (key == "recall" and round(value, 2) != value):  # trec_eval tells no more decimals apart
            wanted = kind.__name__ if low is None else f"{kind.__name__} from {low} to {high}"
            more = {"recall": ", of two decimals at most", "dcg": f": {choices}"}.get(key, "")
            return f"{key}={value!r} will not do; it must be of type {wanted}{more}"
    examples = {"cutoff": 10, "recall": 0.1, "max_rel": 3}
    missing = {key: examples[key] for key, info in infos.items() if info.required and key not in measure.params}
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        return f"{' and '.join(missing)} {verb} missing; write {_spelling(measure, {**measure.params, **missing})}"
    low, high = measure.params.get("min_rel", 0), measure.params.get("max_rel", 1)
    if low >= high:
        return f"min_rel={low} is not below max_rel={high}; raise max_rel to the highest grade"
    if measure.params.get("judged_only") and ir_measures.pyndeval.supports(measure):
        return "judged_only is computed for no measure of subtopics; leave it out"
    providers = ir_measures.DefaultPipeline.providers
    if not any(provider.supports(measure) for provider in providers):
        for key in ("rel", "cutoff"):
            fuller = {key: 1 if key == "rel" else 10} | measure.params
            if key in infos.keys() - measure.params and any(
                provider.supports(measure(**fuller)) for provider in providers
            ):
                return f"{key} is missing; write {_spelling(measure, fuller)}"
        return f"nothing computes it as written; add a parameter, or leave one out ({takes}), or use another measure"
    return None
