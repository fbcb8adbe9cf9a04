"""The measures of ir_measures by their standard strings, with every parameter checked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import ir_measures
from ir_measures import Measure

from unimoe.core.errors import UsageError, did_you_mean

_SHAPE = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(?:\((?P<params>[^()]{0,200})\))?(?:@(?P<at>(?:0|[1-9][0-9]*)(?:\.[0-9]+)?))?"
)
_MOST = 9_999_999
_BOUNDS: dict[str, tuple[float, float]] = {
    "cutoff": (1, _MOST),
    "rel": (1, _MOST),
    "min_rel": (0, _MOST),
    "max_rel": (1, _MOST),
    "p": (0.001, 0.999),
    "recall": (0, 1),
    "beta": (0, 1000),
    "T": (0.001, _MOST),
}
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a quoted word",
    dict: "a mapping of grades to gains such as {1: 0, 2: 1}",
}
_EXAMPLES = {"cutoff": 10, "recall": 0.1, "max_rel": 3}  # of parameters that a measure needs
_SUBTOPICS = {measure.NAME for measure in ir_measures.pyndeval.SUPPORTED_MEASURES}


def parse_measure(text: str) -> Measure | None:
    """Read a measure as ir_measures writes it, such as ``RBP(rel=2,p=0.9)`` or ``nDCG@10``.

    Returns:
        The measure; None where ir_measures has none of that name.

    Raises:
        UsageError: a parameter is unknown, missing, given twice or out of range, or nothing computes the measure.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or match["name"] not in ir_measures.measures.registry:
        return None
    known: Measure = ir_measures.measures.registry[match["name"]]
    params = _params(text, match["params"] or "")
    if match["at"] is not None:
        if known.AT_PARAM in params:
            _refuse(text, f"{known.AT_PARAM} is given twice; write it once, after the @")
        params[known.AT_PARAM] = ast.literal_eval(match["at"])
    params = {**known.params, **params}
    measure: Measure = known(**{key: _checked(text, known, key, value) for key, value in params.items()})
    _refuse_incomplete(text, measure)
    _refuse_uncomputable(text, measure)
    return measure


def given_params(measure: Measure) -> dict[str, Any]:
    """Return the parameters that differ from their default, and a level that is written out."""
    keys = sorted(measure.SUPPORTED_PARAMS, key=lambda key: key != "rel")  # so that their order is no other measure
    defaults = {key: info.default for key, info in measure.SUPPORTED_PARAMS.items() if key != "rel"}
    return {k: measure.params[k] for k in keys if k in measure.params and measure.params[k] != defaults.get(k)}


def spelling(measure: Any) -> str:
    """Write a measure as ir_measures does, but with every level that was given."""
    given = given_params(measure)
    at = f"@{given.pop(measure.AT_PARAM)}" if measure.AT_PARAM in given else ""
    params = ",".join(f"{key}={measure._param_repr(value)}" for key, value in given.items())
    return f"{measure.NAME}({params}){at}" if params else f"{measure.NAME}{at}"


def measure_names(at: str) -> list[str]:
    """Return the names of all measures, with ``at`` behind those that need or take a cut-off."""
    return [
        f"{name}{at}" if "cutoff" in measure.SUPPORTED_PARAMS else name
        for name, measure in ir_measures.measures.registry.items()
        if measure.NAME not in _SUBTOPICS
    ]


def _params(text: str, params: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({params})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        pairs = [(str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in call.keywords]
    except (SyntaxError, ValueError, TypeError):
        _refuse(text, "its parameters cannot be read; write them as in RBP(rel=2,p=0.9)")
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse(text, "a parameter is given twice; write it once")
    return found


def _checked(text: str, known: Measure, key: str, value: Any) -> Any:
    """Return the value of a parameter as the measure wants it."""
    info: Any = known.SUPPORTED_PARAMS.get(key)
    if info is None:
        takes = ", ".join(known.SUPPORTED_PARAMS) or "none"
        near = did_you_mean(key, known.SUPPORTED_PARAMS)
        _refuse(text, f"{known.NAME} has no parameter {key!r}{near}; it has {takes}")
    kept = float(value) if info.dtype is float and type(value) is int else value
    low, high = _BOUNDS.get(key, (None, None))
    fits = type(kept) is info.dtype and (low is None or high is None or low <= kept <= high)
    if not fits or not info.validate(kept) or not _is_gains(kept):
        between = "" if low is None else f" from {low} to {high}"
        _refuse(text, f"{key}={value!r} will not do; it must be {_KINDS[info.dtype]}{between}{_choices(info)}")
    if key == "recall" and round(kept, 2) != kept:
        _refuse(text, f"{key}={value!r} has more than two decimals, which trec_eval does not tell apart; round it")
    return kept


def _is_gains(value: Any) -> bool:
    """Return whether a mapping, where the value is one, leads from grades to gains."""
    if not isinstance(value, Mapping):
        return True
    return all(type(part) is int and part >= 0 for pair in value.items() for part in pair)


def _choices(info: Any) -> str:
    return f": {', '.join(map(repr, info.choices))}" if isinstance(info.choices, list | tuple) else ""


def _refuse_incomplete(text: str, measure: Measure) -> None:
    missing = [key for key, info in measure.SUPPORTED_PARAMS.items() if info.required and key not in measure.params]
    if missing:
        written = spelling(measure(**{key: _EXAMPLES[key] for key in missing}))
        _refuse(text, f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing; write {written}")
    low, high = (measure.params.get(key, 0) for key in ("min_rel", "max_rel"))
    if "max_rel" in measure.SUPPORTED_PARAMS and low >= high:
        _refuse(text, f"min_rel={low} is not below max_rel={high}; raise max_rel to the highest grade")


def _refuse_uncomputable(text: str, measure: Measure) -> None:
    if measure.NAME in _SUBTOPICS:
        _refuse(text, f"{measure.NAME} needs judgments by subtopic, and qrels here have none; use another measure")
    if measure.NAME == "Accuracy":
        _refuse(text, "ir_measures leaves out queries on which it is not defined; use another measure")
    if not any(provider.supports(measure) for provider in ir_measures.DefaultPipeline.providers):
        reasons = min(_reasons(measure), key=len, default=["another measure"])
        _refuse(text, f"nothing computes it as written; it needs {' and '.join(reasons)}")


def _reasons(measure: Measure) -> Iterator[list[str]]:
    """Yield, for each library that knows the measure, the parameters that it needs instead."""
    for provider in ir_measures.DefaultPipeline.providers:
        for supported in provider.SUPPORTED_MEASURES:
            if supported.NAME == measure.NAME:
                wrong = {key: spec for key, spec in supported.params.items() if not spec.validate(measure[key])}
                yield [_wanted(key, spec, key in measure.params) for key, spec in wrong.items()]


def _wanted(key: str, spec: Any, given: bool) -> str:
    if not given:
        return f"a {key}"
    values = [value for value in getattr(spec, "choices", ()) if isinstance(value, int | str)]
    return f"{key}={' or '.join(map(repr, values))}" if values else f"no {key}"


def _refuse(text: str, why: str) -> NoReturn:
    raise UsageError(f"metric {text!r}: {why}")
