"""Results whose report is known beforehand, and the report of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.gates import measured
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.report import gather
from unimoe.analysis.report.pages import Contents
from unimoe.results import EvalResult
from unimoe.results.folder import Results

Scores = list[EvalResult]


UNUSUAL = {"pass_at": 0.10, "fail_below": 0.08, "confidence": 0.8}


def steady(joint: float, dataset: str = "apidocs", *, seeds: int = 3, **given: Any) -> Scores:
    """rank_only scores .5 to .7 on 40 queries; joint has this share of it, with little noise."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.5, 0.7, 40)
    own, other = (factor * base + rng.normal(0.0, 0.002, (seeds, 40)) for factor in (1.0, joint))
    return measured("rank_only_r8", own, dataset, **given) + measured("joint_r8", other, dataset, **given)


def noisy(dataset: str = "apidocs") -> Scores:
    specialist, joint = simulate(3, 30, 0.015, rng=np.random.default_rng(2))
    return measured("rank_only_r8", specialist, dataset) + measured("joint_r8", joint, dataset)


def untrained(arm: str, factor: float = 0.5, **given: Any) -> EvalResult:
    return make_result(arm, None, factor * np.linspace(0.5, 0.7, 40), identity={"checkpoint": "none"}, **given)


def loaded(results: Scores) -> Results:
    return Results(Path("nowhere"), results)


def contents_of(results: Scores, registration: Registration | None = None) -> Contents:
    return gather(Analysis(loaded(results), registration, iterations=10), [])
