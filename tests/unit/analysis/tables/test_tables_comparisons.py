from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result
from support.tables import row

from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.results.folder import Results

N = 60


def results(seeds: int = 2) -> Results:
    """Zero-shot far below a specialist, and a joint arm in between, on every query."""
    rng = np.random.default_rng(3)
    base = rng.uniform(0.2, 0.4, N)
    items = [make_result("zero_shot", None, base)]
    for seed in range(seeds):
        for arm, gain in (("rank_only_r8", 0.4), ("joint_r8", 0.2)):
            items.append(make_result(arm, seed, base + gain + rng.uniform(-0.05, 0.05, N)))
    return Results(Path("outputs"), items)


def compared(found: Results) -> tuple[Comparison, ...]:
    return compare_arms(found, iterations=200)


def test_csv_has_every_number_in_full() -> None:
    found = results()
    outcomes = compared(found)
    c, table = outcomes[0], comparisons_table(found, outcomes)
    line = next(csv.DictReader(io.StringIO(table.to_csv())))
    interval = c.difference.interval
    assert interval
    assert [float(line[name]) for name in ("Delta", "Low", "High")] == [100 * c.delta, *(100 * end for end in interval)]
    assert [float(line[name]) for name in ("p", "p (Holm)", "Check: sign-flip p")] == [c.p, c.p_corrected, c.check_p]
    assert c.check_interval
    assert float(line["Check: bootstrap high"]) == 100 * c.check_interval[1]
    assert float(line["Degrees of freedom"]) == c.difference.degrees_of_freedom
    assert float(line["Standard error"]) == 100 * c.difference.standard_error
    assert [float(line["System mean"]), float(line["Baseline mean"])] == [100 * mean for mean in c.means]
    assert (line["Metric"], float(line["Superiority"])) == ("ndcg@10", c.superiority)
    assert "bootstrap low" not in table.to_markdown()


@pytest.mark.parametrize("seed", range(20))
def test_p_and_interval_are_on_one_side_as_shown(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.2, 0.6, N)
    items = [make_result("bm25", None, base)]
    items += [make_result("x", s, base + 0.012 + rng.normal(0.0, 0.05, N)) for s in range(3)]
    found = Results(Path("outputs"), items)
    cells = row(comparisons_table(found, compared(found)), "x − bm25")
    excludes_0 = cells["Low"].text[0] == cells["High"].text[0] != "0"
    assert (float(cells["p"].text.strip("<")) < 0.05) == excludes_0
