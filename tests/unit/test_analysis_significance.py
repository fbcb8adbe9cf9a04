from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result, query_ids

from unimoe.analysis.compare import Results, compute_significance
from unimoe.errors import UsageError
from unimoe.results import EvalResult


def some_results(*extra: EvalResult) -> Results:
    rng = np.random.default_rng(0)
    items = [make_result("zero_shot", None, rng.uniform(size=30).tolist())]
    for arm in ("rank_only_r8", "joint_r8"):
        items += [make_result(arm, seed, rng.uniform(size=30).tolist()) for seed in (0, 1)]
    return Results(Path("outputs"), [*items, *extra])


def test_asks_the_key_questions_by_seed_and_averaged() -> None:
    found = [(c.system, c.baseline, c.seed) for c in compute_significance(some_results(), iterations=50)]
    assert found == [
        (system, baseline, seed)
        for system, baseline in (
            ("joint_r8", "zero_shot"),
            ("rank_only_r8", "zero_shot"),
            ("joint_r8", "rank_only_r8"),
        )
        for seed in (None, 0, 1)
    ]


def test_compares_with_the_first_stage_last_and_only_where_it_was_measured() -> None:
    found = compute_significance(some_results(make_result("bm25", None, [0.4] * 30)), iterations=50)
    first = compute_significance(some_results(), iterations=50)
    assert [(c.system, c.baseline, c.seed) for c in found[: len(first)]] == [
        (c.system, c.baseline, c.seed) for c in first
    ]
    assert [(c.system, c.seed) for c in found[len(first) :] if c.baseline == "bm25"] == [
        ("joint_r8", None),
        ("rank_only_r8", None),
    ]


def test_one_seed_is_not_averaged() -> None:
    items = [make_result("zero_shot", None, [0.1, 0.2]), make_result("joint_r8", 3, [0.3, 0.1])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert (only.seed, only.seeds, only.wins, only.ties, only.losses) == (3, (3,), 1, 0, 1)


def test_pairs_by_query_id_whatever_the_order_of_the_file() -> None:
    scores = dict(zip(query_ids(4), (0.1, 0.2, 0.3, 0.4), strict=True))
    turned = dict(reversed(scores.items()))
    items = [make_result("zero_shot", None, scores), make_result("joint_r8", 0, turned)]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert only.ties == 4
    assert (only.delta, only.low, only.high, only.p, only.effect) == (0.0, 0.0, 0.0, 1.0, None)


def test_one_query_decides_nothing() -> None:
    items = [make_result("zero_shot", None, [0.1]), make_result("joint_r8", 0, [0.3])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert only.effect is None
    assert (only.p, only.p_t, only.p_max_t, only.p_holm, only.p_bh) == (1.0,) * 5
    ends = [only.low, only.high, only.simultaneous_low, only.simultaneous_high]
    assert ends == pytest.approx([only.delta] * 4)


def test_two_queries_bound_no_simultaneous_interval() -> None:
    items = [make_result("zero_shot", None, [0.1, 0.1]), make_result("joint_r8", 0, [0.3, 0.2])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert (only.simultaneous_low, only.simultaneous_high) == (-math.inf, math.inf)
    assert only.p_max_t > 0.2


def test_differences_that_do_not_vary_have_no_effect_size_whatever_their_rounding() -> None:
    scores = [0.1, 0.2, 0.3, 0.7]
    items = [make_result("zero_shot", None, scores), make_result("joint_r8", 0, [score + 0.1 for score in scores])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert (only.effect, only.p_t, only.p_max_t) == (None, 1.0, 1.0)
    assert only.simultaneous_low == only.delta == only.simultaneous_high


def test_effects_on_the_scales_of_the_baseline_and_of_queries() -> None:
    items = [make_result("zero_shot", None, [0.2, 0.2, 0.4, 0.0]), make_result("joint_r8", 0, [0.3, 0.2, 0.5, 0.1])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert only.relative == pytest.approx(0.3 / 0.8)
    assert only.superiority == pytest.approx(3.5 / 4)


def test_a_baseline_at_zero_leaves_no_relative_effect() -> None:
    items = [make_result("zero_shot", None, [0.0, 0.0]), make_result("joint_r8", 0, [0.3, 0.2])]
    (only,) = compute_significance(Results(Path("outputs"), items), iterations=50)
    assert only.relative is None


def test_simultaneous_intervals_are_somewhat_wider_than_single_ones() -> None:
    for c in compute_significance(some_results(), iterations=2_000):
        reach = (c.simultaneous_high - c.simultaneous_low) / (c.high - c.low)
        assert 1.0 < reach < 2.0
        assert c.p_max_t >= c.p_t * 0.9


def test_equal_seeds_give_equal_numbers_and_another_dataset_changes_none() -> None:
    alone = compute_significance(some_results(), iterations=200, seed=4)
    assert alone == compute_significance(some_results(), iterations=200, seed=4)
    assert alone != compute_significance(some_results(), iterations=200, seed=5)
    other = [
        make_result("joint_r8", 0, [0.1, 0.5], dataset="a"),
        make_result("zero_shot", None, [0.2, 0.1], dataset="a"),
    ]
    more = [c for c in compute_significance(some_results(*other), iterations=200, seed=4) if c.key != "reranking/a"]
    assert [(c.low, c.high, c.p) for c in more] == [(c.low, c.high, c.p) for c in alone]


def test_holm_corrects_within_averages_and_within_single_seeds() -> None:
    found = compute_significance(some_results(), iterations=500)
    for averaged, size in ((True, 3), (False, 6)):
        family = sorted((c for c in found if (c.seed is None) == averaged), key=lambda c: c.p)
        assert family[0].p_holm == pytest.approx(min(1.0, size * family[0].p))
        assert all(c.p_holm >= c.p for c in family)


def test_nothing_to_compare_is_no_error() -> None:
    assert compute_significance(Results(Path("outputs"), [make_result("joint_r8", 0, [0.5])])) == ()


@pytest.mark.parametrize(("alpha", "iterations"), [(0.0, 10), (1.0, 10), (0.05, 0)])
def test_refuses_impossible_settings(alpha: float, iterations: int) -> None:
    with pytest.raises(UsageError):
        compute_significance(some_results(), alpha=alpha, iterations=iterations)
