"""Cells of a study's table: means with intervals, differences of one family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from support.results import make_result, simulate

from unimoe.analysis.statistics.estimates import holm
from unimoe.results.folder import Results
from unimoe.studies.common.table import Arms, differences, mean_interval, pair_up


def test_a_single_run_has_students_interval_over_queries() -> None:
    scores = np.random.default_rng(0).uniform(size=(1, 40))
    interval = scipy.stats.ttest_1samp(scores[0], 0.0).confidence_interval(0.95)
    assert mean_interval(scores).text == f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
    several = np.vstack([scores, scores + 0.05, scores - 0.05])
    ends = [float(text) for text in mean_interval(several).text.split(" to ")]
    assert ends[1] - ends[0] > 100 * (interval.high - interval.low)


def test_what_does_not_vary_has_no_interval() -> None:
    assert mean_interval(np.full((1, 5), 0.5)).text == "–"


def test_all_differences_are_one_family() -> None:
    rng = np.random.default_rng(1)
    baseline = rng.uniform(size=(1, 30))
    systems = {name: np.clip(baseline + rng.normal(0.05, 0.1, (1, 30)), 0, 1) for name in "abc"}
    found = differences({name: Arms(system, baseline, paired=False) for name, system in systems.items()})
    plain = [scipy.stats.ttest_rel(system[0], baseline[0]).pvalue for system in systems.values()]
    assert [each.p for each in found.values()] == pytest.approx(holm(plain))
    for name, each in found.items():
        interval = scipy.stats.ttest_rel(systems[name][0], baseline[0]).confidence_interval(0.95)
        assert each.interval == pytest.approx((interval.low, interval.high))
        assert each.cells[0].value == pytest.approx(100 * (systems[name] - baseline).mean())


def test_too_little_to_test_has_a_difference_alone() -> None:
    found = differences({"it": Arms(np.full((1, 8), 0.5), np.full((1, 8), 0.4), paired=False)})["it"]
    assert (found.interval, found.p) == (None, None)
    assert [cell.text for cell in found.cells] == ["+10.00", "–", "–"]


def test_an_end_keeps_its_side_of_zero() -> None:
    rng = np.random.default_rng(3)
    gap = rng.normal(0.0, 0.05, 50)
    reach = scipy.stats.t.ppf(0.975, 49) * gap.std(ddof=1) / np.sqrt(50)
    for sign in (1, -1):
        system = 0.5 + gap - gap.mean() + reach + sign * 1e-5
        cell = differences({"it": Arms(system[None], np.full((1, 50), 0.5), paired=False)})["it"].cells[1]
        assert cell.text.startswith("+0.001" if sign == 1 else "-0.001")


@pytest.mark.parametrize("declared", [True, False])
def test_seeds_pair_where_they_are_the_same_and_declared_to(declared: bool) -> None:
    rows = simulate(3, 20, 0.0, rng=np.random.default_rng(0))
    arms = {"a": rows[0], "b": rows[1], "short": rows[1][:2]}
    results = Results(
        Path("out"),
        [make_result(arm, s, row, paired_seeds=declared) for arm, of in arms.items() for s, row in enumerate(of)],
    )
    assert pair_up(results, "reranking/apidocs", "a", "b") is declared
    assert not pair_up(results, "reranking/apidocs", "a", "short")
