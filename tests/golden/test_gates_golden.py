"""Intervals of gates against scipy's t tests, which the command itself does without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.gates import DIFFERENCE, INTERFERENCE, both, register
from support.results import make_result, simulate

from unimoe.analysis.gates.judging import judge
from unimoe.results.folder import Results

TOST = DIFFERENCE | {"kind": "equivalence", "margin": 0.02}


def test_over_queries_it_is_the_paired_t_test_and_tost(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    system, baseline = rng.uniform(0.3, 0.9, (2, 40))
    system = baseline + 0.1 * (system - 0.6)
    results = Results(Path("out"), [make_result("a", None, system.tolist()), make_result("b", None, baseline.tolist())])
    judgment = judge(results, register(tmp_path, **TOST | {"system": "a", "baseline": "b"}), "it")
    interval = stats.ttest_rel(system, baseline).confidence_interval(0.95)
    assert judgment.found.estimate.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    lower = stats.ttest_1samp(system - baseline, -0.02, alternative="greater").pvalue
    upper = stats.ttest_1samp(system - baseline, 0.02, alternative="less").pvalue
    assert 1.0 - judgment.found.confidence["PASS"] == pytest.approx(max(lower, upper), rel=1e-6)


def test_over_paired_seeds_it_is_the_t_test_of_their_differences(tmp_path: Path) -> None:
    specialist, joint = simulate(5, 30, 0.03, rng=np.random.default_rng(6))
    gate = register(tmp_path, **TOST | {"estimand": "seeds"})
    judgment = judge(both(specialist, joint, paired_seeds=True), gate, "it")
    interval = stats.ttest_1samp((joint - specialist).mean(axis=1), 0.0).confidence_interval(0.95)
    assert judgment.found.paired
    assert judgment.found.estimate.interval == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_tir_over_paired_seeds_is_the_test_of_the_contrast_at_the_cutoff(tmp_path: Path) -> None:
    specialist, joint = simulate(5, 30, 0.03, rng=np.random.default_rng(7))
    gate = register(tmp_path, **INTERFERENCE | {"estimand": "seeds"})
    found = judge(both(specialist, joint, paired_seeds=True), gate, "it").found
    for cutoff, confidence in ((0.02, found.confidence["PASS"]), (0.01, 1.0 - found.confidence["FAIL"])):
        excess = ((1.0 - cutoff) * specialist - joint).mean(axis=1)
        assert confidence == pytest.approx(1.0 - stats.ttest_1samp(excess, 0.0, alternative="greater").pvalue)
