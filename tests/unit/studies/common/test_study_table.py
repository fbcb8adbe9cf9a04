"""Cells of a study's table: differences of one family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from support.results import make_result, simulate

from unimoe.analysis.statistics.estimates import holm
from unimoe.results.folder import Results
from unimoe.studies.common.table import differences, pair_up


def test_all_differences_are_one_family() -> None:
    rng = np.random.default_rng(1)
    baseline = rng.uniform(size=(1, 30))
    systems = {name: np.clip(baseline + rng.normal(0.05, 0.1, (1, 30)), 0, 1) for name in "abc"}
    found = differences({name: (system, baseline, False) for name, system in systems.items()})
    plain = [scipy.stats.ttest_rel(system[0], baseline[0]) for system in systems.values()]
    assert [p.value for _, _, p in found.values()] == pytest.approx(holm([test.pvalue for test in plain]))
    for name, test in zip(systems, plain, strict=True):
        delta, interval, _ = found[name]
        assert delta.value == pytest.approx(100 * (systems[name] - baseline).mean())
        ends = [100 * end for end in test.confidence_interval(0.95)]
        assert [float(text) for text in interval.text.split(" to ")] == pytest.approx(ends, abs=0.05)


def test_too_little_to_test_has_a_difference_alone() -> None:
    found = differences({"it": (np.full((1, 8), 0.5), np.full((1, 8), 0.4), False)})["it"]
    assert [cell.text for cell in found] == ["+10.00", "–", "–"]


def test_an_end_keeps_its_side_of_zero() -> None:
    rng = np.random.default_rng(3)
    gap = rng.normal(0.0, 0.05, 50)
    reach = scipy.stats.t.ppf(0.975, 49) * gap.std(ddof=1) / np.sqrt(50)
    for sign in (1, -1):
        system = 0.5 + gap - gap.mean() + reach + sign * 1e-5
        cell = differences({"it": (system[None], np.full((1, 50), 0.5), False)})["it"][1]
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
