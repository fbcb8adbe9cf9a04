"""Lists to train a cross-encoder on: MS MARCO's rows, collections with BM25 candidates, what a loss can learn from."""

from __future__ import annotations

from typing import Any

import pytest

from unimoe.config.training import LossConfig
from unimoe.core.errors import DataError
from unimoe.data.collection import Document, assemble
from unimoe.studies.cross_encoder.data import (
    LabelledList,
    Lists,
    collection_lists,
    fit_for,
    held_out_set,
    ms_marco_lists,
)


def row(query_id: int, selected: list[int], **changes: Any) -> dict[str, Any]:
    """A row as the hub's MS MARCO v1.1 has it, columns that are not read included."""
    texts = [f"passage {query_id}-{place}" for place in range(len(selected))]
    passages = {"is_selected": selected, "passage_text": texts, "url": [""] * len(selected)}
    return {"query_id": query_id, "query": f"query {query_id}", "passages": passages, "answers": []} | changes


def one(labels: tuple[float, ...], query_id: str = "q") -> LabelledList:
    return LabelledList(query_id, "query", tuple(f"d{place}" for place in range(len(labels))), labels)


class TestMSMarco:
    def test_passages_are_sorted_by_label_cut_and_keep_their_order_otherwise(self) -> None:
        made = ms_marco_lists([row(7, [0, 1, 0, 1]), row(1, [0, 0]), row(3, [])], max_docs=3)
        assert made.lists == (
            LabelledList("7", "query 7", ("passage 7-1", "passage 7-3", "passage 7-0"), (1.0, 1.0, 0.0)),
        )
        assert made.notes == ["2 queries left out: no passage is selected"]

    def test_a_seeded_part_is_held_out(self) -> None:
        made = ms_marco_lists([row(number, [1, 0]) for number in range(20)], max_docs=None)
        train, held_out = made.split(5, seed=12)
        assert (len(train.lists), len(held_out.lists)) == (15, 5)
        assert {*train.lists, *held_out.lists} == {*made.lists}
        assert made.split(5, seed=12) == (train, held_out)
        assert made.split(5, seed=13)[1] != held_out
        with pytest.raises(DataError, match=r"lower lists\.held_out"):
            made.split(20, seed=12)

    def test_held_out_lists_are_reranked_without_a_trace_of_their_order(self) -> None:
        lists = ms_marco_lists([row(number, [0, 1, 0]) for number in range(30)], max_docs=None).lists
        held_out = held_out_set(lists)
        firsts = [max(held_out.candidates[made.query_id]) for made in lists]  # what a tie would put first
        relevant = [held_out.collection.qrels[made.query_id][name] for made, name in zip(lists, firsts, strict=True)]
        assert 0 < sum(relevant) < len(lists)
        assert all(set(scores.values()) == {0.0} for scores in held_out.candidates.values())


CORPUS = [(name, Document("", f"text {name}")) for name in "abcdefgh"]
COLLECTION = assemble(
    "graded",
    "train",
    CORPUS,
    [("q1", "first"), ("q2", "second"), ("q3", "third")],
    {"q1": {"a": 1, "b": 2, "c": 2, "h": 0}, "q2": {"a": 0}, "q3": {"d": 1, "elsewhere": 2}},
)
RUN = {"q1": {"h": 5.0, "c": 4.0, "e": 3.0, "a": 2.0, "f": 1.0}, "q2": {"a": 1.0}, "q3": {}}


class TestCollection:
    def test_grades_first_then_the_candidates_in_their_order(self) -> None:
        made = collection_lists(COLLECTION, RUN, max_docs=None, max_positives=None)
        first = made.lists[0]
        assert first.documents == tuple(f"text {name}" for name in "cbahef")  # c was found, b was not
        assert first.labels == (2.0, 2.0, 1.0, 0.0, 0.0, 0.0)
        assert [found.query_id for found in made.lists] == ["q1", "q3"]
        assert made.notes == ["1 queries left out: no relevant document"]
        cut, few = (collection_lists(COLLECTION, RUN, 4, most).lists[0] for most in (None, 1))
        assert cut.documents == tuple(f"text {name}" for name in "cbhe"), "positives leave room for negatives"
        assert few.labels == (2.0, 0.0, 0.0, 0.0)


class TestFitness:
    lists = Lists((one((1.0, 0.0)), one((1.0, 1.0)), one((1.0,)), one((2.0, 1.0, 0.0))), {"no relevant document": 3})

    def test_what_teaches_no_order_is_left_out_and_counted(self) -> None:
        fit = fit_for(LossConfig(name="lambdaloss"), self.lists)
        assert fit.lists == (self.lists.lists[0], self.lists.lists[3])
        assert fit.dropped == {"no relevant document": 3, "all labels equal": 1, "fewer than two documents": 1}

    def test_equal_labels_stay_where_their_order_is_taught(self) -> None:
        assert len(fit_for(LossConfig(name="plistmle"), self.lists).lists) == 3
        shuffled = LossConfig(name="plistmle", respect_input_order=False, ties="shuffle")
        assert len(fit_for(shuffled, self.lists).lists) == 2

    def test_pairs_are_judged_alone(self) -> None:
        fit = fit_for(LossConfig(name="yes_no"), self.lists)
        assert len(fit.lists) == 4
        assert fit.lists[3].labels == (1.0, 1.0, 0.0)

    def test_what_leaves_nothing_to_learn_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"no list is left to train .*1 with fewer than two documents"):
            fit_for(LossConfig(name="plistmle"), Lists((one((1.0,)),)))
        binary = Lists((one((1.0, 0.0)),))
        with pytest.raises(DataError, match="marginmse needs graded labels"):
            fit_for(LossConfig(name="marginmse"), binary)
        assert fit_for(LossConfig(name="marginmse"), self.lists).lists


def test_samples_are_nested_and_hashes_see_everything() -> None:
    lists = Lists(tuple(one((1.0, 0.0), str(number)) for number in range(10)))
    assert set(lists.sample(3).lists) < set(lists.sample(6).lists)
    assert lists.sample(None) is lists
    changed = Lists((one((1.0, 0.5), "0"), *lists.lists[1:]))
    assert len({lists.content_hash, changed.content_hash, lists.sample(9).content_hash}) == 3
