"""Which queries train, what a batch holds, and what may count as a negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from unimoe.core.errors import DataError
from unimoe.data.collection import Collection, Document
from unimoe.studies.biencoder.config import BiEncoderConfig, LabelConfig
from unimoe.studies.biencoder.training.pairs import TrainingPairs, batches_per_epoch, epoch_batches, training_pairs
from unimoe.studies.biencoder.training.search import dev_score

DOCUMENTS = {f"d{number}": Document("", f"text {number}") for number in range(12)}


def collection(qrels: dict[str, dict[str, int]], texts: dict[str, str] | None = None) -> Collection:
    queries = {key: (texts or {}).get(key, f"text of {key}") for key in qrels}
    return Collection("toy", "train", DOCUMENTS, queries, qrels)


def config(**changes: Any) -> BiEncoderConfig:
    return BiEncoderConfig.model_validate({"batch_size": 4, **changes})


def one_each(count: int) -> TrainingPairs:
    return training_pairs(collection({f"q{number}": {f"d{number}": 1} for number in range(count)}), 1)


class Places:
    """A source whose vectors turn away from the query with the number in the text."""

    def inputs(self, kind: str, texts: Mapping[str, str]) -> list[Any]:
        raise NotImplementedError

    def embed(self, inputs: Sequence[Any]) -> torch.Tensor:
        raise NotImplementedError

    def all_vectors(self, kind: str, texts: Mapping[str, str]) -> NDArray[np.float32]:
        angles = np.array([float(text.split()[-1]) for text in texts.values()]) / 200
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.mark.parametrize(("metric", "value"), [("recall@119", 0.0), ("recall@120", 1.0), ("mrr@200", 1 / 120)])
def test_dev_is_searched_as_deep_as_its_metric_looks(metric: str, value: float) -> None:
    documents = {f"d{number:03}": Document("", f"text {number}") for number in range(150)}
    dev = Collection("toy", "dev", documents, {"q": "query 0"}, {"q": {"d119": 1}})
    assert dev_score(Places(), dev, metric) == pytest.approx(value)


class TestPairs:
    def test_queries_without_a_positive_in_the_corpus_are_dropped_and_counted(self) -> None:
        pairs = training_pairs(
            collection({"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 0}, "q3": {"gone": 2}, "q4": {"d4": 1}}), 2
        )
        assert (pairs.query_ids, pairs.own, pairs.dropped) == (["q1"], [["d1"]], 3)

    def test_no_positive_at_all_is_an_error(self) -> None:
        with pytest.raises(DataError, match="no query of split 'train' has a positive"):
            training_pairs(collection({"q1": {"d1": 1}}), 2)

    def test_queries_of_one_text_know_each_others_positives(self) -> None:
        pairs = training_pairs(collection({"q1": {"d1": 1}, "q2": {"d2": 1}}, {"q1": "same", "q2": "same"}), 1)
        assert pairs.own == [["d1"], ["d2"]]
        assert pairs.relevant == [["d1", "d2"]] * 2
        assert pairs.same_text == [0, 0]


class TestBatches:
    def test_every_epoch_has_an_order_and_draws_of_its_own_which_the_seed_repeats(self) -> None:
        pairs = training_pairs(collection({f"q{n}": {f"d{n}": 1, f"d{n + 4}": 1} for n in range(8)}), 1)

        def drawn(epoch: int, seed: int = 0) -> list[tuple[int, str]]:
            batches = epoch_batches(pairs, config(seed=seed), epoch)
            return [(query, batch.documents[0]) for batch in batches for query in batch.queries]

        assert drawn(0) == drawn(0)
        assert drawn(0) != drawn(1)
        assert drawn(0) != drawn(0, seed=1)
        assert sorted(query for query, _ in drawn(0)) == list(range(8))

    def test_only_whole_batches_but_at_least_one(self) -> None:
        assert batches_per_epoch(one_each(11), config()) == 2
        (batch,) = epoch_batches(one_each(3), config(), 0)
        assert len(batch.queries) == 3

    def test_each_document_stands_once_and_is_the_target_of_all_who_drew_it(self) -> None:
        pairs = training_pairs(collection({f"q{n}": {"d0": 1} for n in range(4)}), 1)
        (batch,) = epoch_batches(pairs, config(), 0)
        assert batch.documents == ["d0"]
        assert batch.positives.tolist() == [[True]] * 4

    def test_queries_of_one_text_are_each_others_positives(self) -> None:
        pairs = training_pairs(
            collection({"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}, {"q1": "same", "q2": "same"}), 1
        )
        (batch,) = epoch_batches(pairs, config(), 0)
        found = {(batch.queries[row], batch.documents[column]) for row, column in batch.positives.nonzero().tolist()}
        assert found == {(0, "d1"), (0, "d2"), (1, "d1"), (1, "d2"), (2, "d3")}

    @pytest.mark.parametrize(("rule", "target", "left_out"), [
        ("mask", False, True), ("positive", True, False), ("negative", False, False),
    ])  # fmt: skip
    def test_known_positives_of_other_rows(self, rule: str, target: bool, left_out: bool) -> None:
        graded = {"q0": {"d0": 1, "d1": 0}, "q1": {"d1": 1}}
        pairs = training_pairs(collection(graded), 1)
        object.__setattr__(pairs, "relevant", [["d0", "d1"], ["d1"]])  # judged, but not what can be drawn
        (batch,) = epoch_batches(pairs, config(loss={"known_positives": rule}), 0)
        row, column = batch.queries.index(0), batch.documents.index("d1")
        assert bool(batch.positives[row, column]) is target
        assert bool(batch.excluded[row, column]) is left_out
        other = batch.queries.index(1), batch.documents.index("d0")
        assert not bool(batch.excluded[other])
        assert not bool(batch.positives[other])

    def test_hard_negatives_come_behind_and_are_nobodys_target(self) -> None:
        chosen = config(batch_size=2, negatives={"per_query": 2})
        batches = epoch_batches(one_each(4), chosen, 0, {f"q{n}": ["d8", "d9", "d10"] for n in range(4)})
        for batch in batches:
            assert set(batch.documents[2:]) <= {"d8", "d9", "d10"}
            assert len(batch.documents) >= 4
            assert not bool(batch.positives[:, 2:].any())


@pytest.mark.parametrize(("keys", "words"), [
    ({"learning_rate": 0.0}, "greater than 0"),
    ({"freeze_base": True, "out_dim": None}, "leaves nothing to train"),
    ({"freeze_base": True, "frozen_layers": 1}, "has no effect with freeze_base"),
    ({"negatives": {"per_query": 5, "depth": 6, "skip": 2}}, "leaves fewer than 5"),
    ({"dev": {"metric": "recal@10"}}, "did you mean 'recall@10'"),
    ({"batch_size": 1}, "greater than or equal to 2"),
])  # fmt: skip
def test_settings_that_cannot_be(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words) as raised:
        BiEncoderConfig.model_validate(keys)
    assert type(raised.value).__name__ in {"ValidationError", "UsageError"}


@pytest.mark.parametrize("keys", [{"thresholds": [0.8, 0.5]}, {"thresholds": []}, {"sampling": {"min_words": 40}}])
def test_labels_that_cannot_be(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelConfig.model_validate({"collection": "nfcorpus", **keys})
