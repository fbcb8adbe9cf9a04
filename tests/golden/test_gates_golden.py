"""Gates against scipy's t tests; judged at looks, against simulations by other code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, register
from support.results import make_result, simulate

from unimoe.analysis.gates.judging import Judgment, judge
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.gates.registration import default_looks
from unimoe.analysis.statistics.sequential import confidence_at_looks
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


@pytest.mark.parametrize(
    ("looks", "at_90", "at_95"),
    [  # calibrated twice with 400,000 paths each, by other code
        ([3], 0.9, 0.95),
        ([3, 6], 0.940, 0.972),
        ([4, 8], 0.939, 0.971),
        ([3, 5, 8], 0.954, 0.979),
        ([3, 5, 10], 0.956, 0.980),
        (range(3, 11), 0.969, 0.987),
        (range(2, 11), 0.974, 0.989),
    ],
)
def test_each_look_asks_for_the_confidence_that_simulations_found(looks: Any, at_90: float, at_95: float) -> None:
    found = [confidence_at_looks(tuple(looks), level) for level in (0.90, 0.95)]
    assert found == pytest.approx([at_90, at_95], abs=0.0011)


def test_later_seeds_do_not_change_a_label(tmp_path: Path) -> None:
    """Seeds 3 and 4 lose all that the first three had won: they came after the label."""
    specialist, joint = (np.asarray(rows) for rows in _scores(clear_gap(-0.1, seeds=5)))
    joint[3:] += 0.3
    gate = register(tmp_path, **INTERFERENCE | {"looks": [3, 5, 8]})
    found = judge(both(specialist, joint), gate, "it")
    assert (found.look, found.label, found.found.seeds[1]) == (3, "PASS", (0, 1, 2))
    alone = judge(both(specialist[:3], joint[:3]), gate, "it").found
    assert (found.found.value, found.found.confidence) == (alone.value, alone.confidence)
    assert "decided at the look at 3 seeds: the gate is closed, and later seeds change nothing" in _text(found)
    assert judge(both(specialist, joint), register(tmp_path, **INTERFERENCE), "it").label != "PASS"


@pytest.mark.parametrize(
    ("looks", "seeds", "look", "words"),
    [
        ([3, 5, 8], 2, 2, "the first look is at 3 seeds, and here are 2"),
        ([3, 5, 8], 3, 3, "the next look is at 5"),
        ([3, 5, 8], 4, 3, "the next look is at 5"),
        ([3, 5, 8], 5, 5, "the next look is at 8"),
        ([3, 5], 12, 5, "the last look, at 5 seeds, is over"),
    ],
)
def test_without_a_label_it_is_judged_at_the_last_look_so_far(
    tmp_path: Path, looks: list[int], seeds: int, look: int, words: str
) -> None:
    found = judge(_undecided(seeds), register(tmp_path, **INTERFERENCE | {"looks": looks}), "it")
    assert (found.label, found.look, len(found.found.seeds[0])) == ("INCONCLUSIVE", look, look)
    assert words in _text(found)
    (facts,) = gates_as_json(None, [found], [found])["gates"]
    assert (facts["look"], facts["label_confidence"]) == (look, confidence_at_looks(tuple(looks), 0.90))
    if look in (2, looks[-1]):  # too early, or over
        assert (found.outlook, facts["outlook"]) == (None, None)
    else:
        assert found.outlook is not None
        assert sum(found.outlook.chances.values()) == pytest.approx(1.0)
        assert facts["outlook"]["looks"] == [later for later in looks if later > look]


def test_a_look_skips_no_registered_seed(tmp_path: Path) -> None:
    """Seed 1 is missing: seeds 2 to 5 cannot stand in for it."""
    whole = clear_gap(-0.1, seeds=6)
    results = Results(Path("out"), [result for result in whole.results if result.seed != 1])
    gate = register(tmp_path, **INTERFERENCE | {"looks": [3, 5], "seeds": [0, 1, 2, 3, 4]})
    found = judge(results, gate, "it")
    assert (found.label, found.found.seeds) == ("INCONCLUSIVE", ((0,), (0,)))


def test_experiments_of_five_seeds_or_more_look_before_their_end() -> None:
    looks = {4: None, 5: [3, 5], 6: [3, 6], 7: [3, 5, 7], 8: [3, 5, 8], 10: [3, 5, 10]}
    assert {seeds: default_looks(seeds) for seeds in looks} == looks


def _undecided(seeds: int) -> Results:
    """Arms whose TIR of 1.5 % lies between the cutoffs, with seeds that scatter far more."""
    return both(*simulate(seeds, 40, 0.015, rng=np.random.default_rng(4), seed_sd=0.02))


def _scores(results: Results) -> tuple[Any, Any]:
    seeds = range(len(results.results) // 2)
    first, second = (results.scores(arm, "reranking/apidocs", seeds, "ndcg@10") for arm in ("rank_only_r8", "joint_r8"))
    return first, second


def _text(found: Judgment) -> str:
    return " ".join(gate_lines(None, [found]).split())
