"""The verdict block: what a user sees at the end of the main job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.interference import compute_interference_metrics
from unimoe.analysis.loading import Results
from unimoe.analysis.power import plan, settle_sentence
from unimoe.analysis.verdict import WIDTH, Verdict, verdict_block, verdicts
from unimoe.results import EvalResult


def constant(
    specialist: float, joint: float, dataset: str = "apidocs", seeds: Sequence[int] = (0, 1)
) -> list[EvalResult]:
    arms = {"rank_only_r8": specialist, "joint_r8": joint}
    return [make_result(arm, seed, [score] * 3, dataset=dataset) for arm, score in arms.items() for seed in seeds]


def noisy(dataset: str = "apidocs", tir: float = 0.03, queries: int = 60, seeds: int = 3) -> list[EvalResult]:
    arms = zip(("rank_only_r8", "joint_r8"), simulate(seeds, queries, tir, rng=np.random.default_rng(2)), strict=True)
    return [
        make_result(arm, seed, np.clip(row, 0, 1).tolist(), dataset=dataset)
        for arm, rows in arms
        for seed, row in enumerate(rows)
    ]


def of(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def lines(verdict: Verdict) -> dict[str, str]:
    return dict(verdict.lines)


def test_inconclusive_says_how_many_seeds_and_queries_would_settle_it() -> None:
    results = of(*noisy())
    found = compute_interference_metrics(results).measured[0].crossed
    assert found is not None
    assert found.mean_squares is not None
    said = lines(verdicts(Analysis(results))[0])
    assert said["With confidence"].startswith("INCONCLUSIVE")
    assert said["Would settle it"] == settle_sentence(plan(found.mean_squares, found.estimate))


def test_what_is_settled_asks_for_nothing_more() -> None:
    said = lines(verdicts(Analysis(of(*constant(0.6, 0.5))))[0])
    assert said["With confidence"] == "PASS (confidence above .99)"
    assert "Would settle it" not in said


def test_names_the_interval_for_fixed_queries_beside_the_other() -> None:
    results = of(*noisy())
    fixed = compute_interference_metrics(results).measured[0].fixed_queries
    assert fixed is not None
    said = lines(verdicts(Analysis(results))[0])
    assert "other seeds, other queries" in said["95 % interval"]
    assert said["Queries fixed"].startswith(f"{100 * fixed.low:+.2f} % to {100 * fixed.high:+.2f} %, {fixed.label} ")


def test_one_seed_has_neither_interval_and_says_so() -> None:
    said = lines(verdicts(Analysis(of(*constant(0.6, 0.5, seeds=(0,)))))[0])
    assert (
        said["95 % interval"] == said["With confidence"] == "not computable, it needs two seeds and two queries or more"
    )
    assert "Queries fixed" not in said
    assert said["Rule"].startswith("PASS (interference confirmed")


def test_several_datasets_are_followed_by_what_they_say_together() -> None:
    found = verdicts(Analysis(of(*constant(0.5, 0.45, "fiqa"), *constant(0.8, 0.8, "scifact"))))
    assert [v.heading.partition(":")[0] for v in found[:3]] == [
        "Reranking on fiqa",
        "Reranking on scifact",
        "Reranking across 2 datasets",
    ]
    # mean of .1 and 0; means .65 against .625
    assert lines(found[2])["TIR"] == "+5.00 % ± 0.00, mean of TIRs; the TIR of mean scores is +3.85 %, PASS"


def test_many_datasets_take_a_line_each() -> None:
    names = [f"cqadupstack/{i}" for i in range(5)]
    block = verdict_block(Analysis(of(*(result for name in names for result in noisy(name, queries=20)))))
    for name in names:
        (line,) = [line for line in block.splitlines() if line.strip().startswith(name)]
        assert line.endswith(" / INCONCLUSIVE")
    assert "Reranking across 5 datasets" in block
    assert len(block.splitlines()) < 30


@pytest.mark.parametrize("datasets", [1, 2, 5])
def test_fits_a_terminal_and_keeps_numbers_whole(datasets: int) -> None:
    items = [result for i in range(datasets) for result in noisy(f"a-collection-with-a-long-name-{i}", queries=30)]
    for line in verdict_block(Analysis(of(*items))).splitlines():
        assert len(line) <= WIDTH
        assert not line.strip().startswith("%")
