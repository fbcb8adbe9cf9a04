from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest

from unimoe.retrieval.fusion import reciprocal_rank_fusion


def test_scores_by_hand() -> None:
    first = {"q": {"a": 9.0, "b": 8.0, "c": 7.0}}
    second = {"q": {"c": 0.5, "a": 0.4, "d": 0.3}}
    fused = reciprocal_rank_fusion([first, second], depth=10)
    by_hand = {
        "a": Fraction(1, 61) + Fraction(1, 62),
        "c": Fraction(1, 63) + Fraction(1, 61),
        "b": Fraction(1, 62),
        "d": Fraction(1, 63),
    }
    assert list(fused["q"]) == list(by_hand)
    assert fused["q"] == pytest.approx({key: float(value) for key, value in by_hand.items()}, rel=1e-15)
    with_small_k = reciprocal_rank_fusion([first, second], depth=10, k=1)["q"]
    assert with_small_k["a"] == pytest.approx(1 / 2 + 1 / 3, rel=1e-15)


def test_ranks_follow_trec_eval_whatever_the_order_in_the_run() -> None:
    """Equal scores, also those equal only as float32, rank by id descending."""
    run = {"q": {"a": 1.0, "b": 1.0 + 1e-9, "z": 0.5, "c": 2.0}}
    assert reciprocal_rank_fusion([run], depth=4)["q"] == {"c": 1 / 61, "b": 1 / 62, "a": 1 / 63, "z": 1 / 64}


def test_the_order_of_the_runs_does_not_show() -> None:
    runs = [{"q": {d: float((i * step) % 7) for i, d in enumerate("abcdefg")}} for step in (1, 2, 3, 5)]
    results = [list(reciprocal_rank_fusion(order, depth=7)["q"].items()) for order in permutations(runs)]
    assert all(result == results[0] for result in results)
