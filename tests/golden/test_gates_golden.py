"""Intervals of gates against scipy's t tests, which the command itself does without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.gates import DIFFERENCE, both, register
from support.results import make_result, simulate

from unimoe.analysis.gates.judging import judge
from unimoe.analysis.loading import Results

TOST = DIFFERENCE | {"kind": "equivalence", "margin": 0.02}


def test_over_queries_it_is_the_paired_t_test_and_tost(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    system, baseline = rng.uniform(0.3, 0.9, (2, 40))
    system = baseline + 0.1 * (system - 0.6)
    results = Results(Path("out"), [make_result("a", None, system.tolist()), make_result("b", None, baseline.tolist())])
    judgment = judge(results, register(tmp_path, **TOST | {"system": "a", "baseline": "b"}), "it")
    oracle = stats.ttest_rel(system, baseline)
    interval = oracle.confidence_interval(0.95)
    assert judgment.found.interval is not None
    found = judgment.found.interval
    assert [found.low, found.high] == pytest.approx([interval.low, interval.high], rel=1e-9)
    lower = stats.ttest_1samp(system - baseline, -0.02, alternative="greater").pvalue
    upper = stats.ttest_1samp(system - baseline, 0.02, alternative="less").pvalue
    assert 1.0 - judgment.found.confidence["PASS"] == pytest.approx(max(lower, upper), rel=1e-6)


def test_over_seeds_it_is_the_t_test_of_the_seeds_means(tmp_path: Path) -> None:
    specialist, joint = simulate(5, 30, 0.03, rng=np.random.default_rng(6))
    gate = register(tmp_path, **TOST | {"estimand": "seeds"})
    judgment = judge(both(specialist, joint), gate, "it")
    interval = stats.ttest_1samp((joint - specialist).mean(axis=1), 0.0).confidence_interval(0.95)
    assert judgment.found.interval is not None
    assert judgment.found.interval.low == pytest.approx(interval.low, rel=1e-9)
    assert judgment.found.interval.high == pytest.approx(interval.high, rel=1e-9)
