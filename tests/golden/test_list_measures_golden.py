"""Measures of permuted lists against pytrec_eval and ir_measures, ranking by ranking."""

from __future__ import annotations

from itertools import permutations

import ir_measures
import pytest
import torch

from unimoe.core.errors import InputError
from unimoe.metrics import register_measure, score_run
from unimoe.metrics.names import _registered
from unimoe.training.losses.list_measures import ListMeasure

GRADES = [[2, 0, 1, 0, 3], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 2, 1, 1]]
LABELS, VALID = torch.tensor(GRADES, dtype=torch.float32), torch.ones(4, 5, dtype=torch.bool)
ORDERS = torch.tensor(list(permutations(range(5)))[::7])
NAMES = (
    "ndcg@10", "ndcg@3", "ndcg", "mrr", "mrr@2", "RR(rel=2)@10", "map", "map@3", "AP(rel=2)", "p@3", "p@10", "recall@2",
    "recall_cap@2", "recall_of_retrieved@10", "Success@1", "Success(rel=2)@3", "RBP(rel=1,p=0.8)", "Bpref", "Rprec",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_permutation_has_the_value_of_the_evaluator(name: str) -> None:
    found = ListMeasure(name, LABELS, VALID).of_orders(ORDERS.expand(4, -1, -1))
    qrels, run = {}, {}
    for row, grades in enumerate(GRADES):
        for number, order in enumerate(ORDERS.tolist()):
            qrels[f"{row}-{number}"] = {f"d{place}": grade for place, grade in enumerate(grades)}
            run[f"{row}-{number}"] = {f"d{place}": float(-rank) for rank, place in enumerate(order)}
    (expected,) = score_run(qrels, run, name).per_query.values()
    for row in range(4):
        values = [expected[f"{row}-{number}"] for number in range(len(ORDERS))]
        assert found[row].tolist() == pytest.approx(values, abs=1e-9)


def test_err_by_hand() -> None:
    """Grades 3 and 1 first: R = 7/16 and 1/16, so ERR is 7/16 + (9/16)(1/16) / 2."""
    labels = torch.tensor([[3.0, 1.0, 0.0]])
    found = ListMeasure("ERR@20", labels, labels >= 0)(torch.tensor([[[3.0], [2.0], [1.0]]]))
    assert float(found) == pytest.approx(7 / 16 + 9 / 16 / 16 / 2, abs=1e-12)
    first = ListMeasure("ERR@1", labels, labels >= 0)(torch.tensor([[[1.0], [2.0], [0.0]]]))
    assert float(first) == pytest.approx(1 / 16, abs=1e-12)


@pytest.mark.skipif(not ir_measures.gdeval.is_available(), reason="gdeval needs Perl")
def test_err_is_that_of_gdeval() -> None:
    found = ListMeasure("ERR@20", LABELS, VALID).of_orders(ORDERS[:6].expand(4, -1, -1))
    for number, order in enumerate(ORDERS[:6].tolist()):
        qrels = {str(row): {f"d{place}": grade for place, grade in enumerate(g)} for row, g in enumerate(GRADES)}
        run = {str(row): {f"d{place}": float(-rank) for rank, place in enumerate(order)} for row in range(4)}
        for value in ir_measures.gdeval.iter_calc([ir_measures.ERR @ 20], qrels, run):
            assert float(found[int(value.query_id), number]) == pytest.approx(value.value, abs=1e-5)


@pytest.mark.parametrize("name", ["ndcg@3", "map", "recall_of_retrieved@4", "ERR@20", "RBP(rel=1)"])
def test_padding_and_blocks_change_nothing(name: str) -> None:
    labels = torch.tensor([[1.0, 0, 2], [0, 1, 0]])
    scores = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    whole = ListMeasure(name, labels, torch.ones(2, 3, dtype=torch.bool))(scores)
    wide, there = torch.nn.functional.pad(labels, (0, 2)), torch.tensor([[True] * 3 + [False] * 2] * 2)
    padding = torch.full((2, 2, 8), -torch.inf)
    padded = ListMeasure(name, wide, there)
    rows = torch.cat([scores, padding], dim=1)
    torch.testing.assert_close(padded(rows), whole)
    torch.testing.assert_close(padded(rows[1:], slice(1, 2)), whole[1:])


def test_fractional_labels_are_gains_of_ndcg_and_refused_where_a_library_counts() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    there = torch.ones(2, 2, dtype=torch.bool)
    found = ListMeasure("ndcg@10", labels, there)(torch.tensor([[0.0, 1.0]] * 2).unsqueeze(2))
    assert found.flatten().tolist() == pytest.approx([0.63092975] * 2)  # 1 / log2(3): the gains cancel
    with pytest.raises(InputError, match=r"takes whole labels, and one is 0.5; take ndcg@10") as caught:
        ListMeasure("Bpref", labels, there)
    assert caught.value.index == 1
    with pytest.raises(InputError, match="ERR@20 takes labels up to 4, and one is 7"):
        ListMeasure("ERR@20", 7 * labels, there)


def test_a_measure_of_your_own() -> None:
    register_measure("last_is_bad", lambda grades, ranking: float(grades[ranking[-1]] == 0))
    try:
        found = ListMeasure("last_is_bad", LABELS[:1], VALID[:1]).of_orders(torch.tensor([[[0, 1, 2, 4, 3]]]))
        assert found.tolist() == [[1.0]]
    finally:
        del _registered["last_is_bad"]
