"""Which queries train, what a batch holds, what may count as a negative, and which weights train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoConfig, AutoModel

from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Collection, Document
from unimoe.studies.biencoder.config import BiEncoderConfig, LabelConfig, NegativesConfig
from unimoe.studies.biencoder.data import TrainingPairs, batches_per_epoch, epoch_batches, training_pairs, unjudged
from unimoe.studies.common.trained_model import freeze_lower_layers

DOCUMENTS = {f"d{number}": Document("", f"text {number}") for number in range(12)}


def pairs_of(qrels: dict[str, dict[str, int]], threshold: int = 1, **texts: str) -> TrainingPairs:
    queries = {key: texts.get(key, f"text of {key}") for key in qrels}
    return training_pairs(Collection("toy", "train", DOCUMENTS, queries, qrels), threshold)


def config(**changes: Any) -> BiEncoderConfig:
    return BiEncoderConfig.model_validate({"batch_size": 4, **changes})


def one_each(count: int) -> TrainingPairs:
    return pairs_of({f"q{number}": {f"d{number}": 1} for number in range(count)})


class TestPairs:
    def test_queries_without_a_positive_in_the_corpus_are_dropped_and_counted(self) -> None:
        pairs = pairs_of({"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 0}, "q3": {"gone": 2}, "q4": {"d4": 1}}, 2)
        assert (pairs.query_ids, pairs.own, pairs.dropped) == (["q1"], [["d1"]], 3)
        with pytest.raises(DataError, match="no query of split 'train' has a positive"):
            pairs_of({"q1": {"d1": 1}}, 2)

    def test_hard_negatives_are_the_best_documents_that_no_query_of_the_text_is_judged_with(self) -> None:
        pairs = pairs_of({"q1": {"d1": 1}, "q2": {"d2": 1}}, q1="same", q2="same")
        run = {key: {f"d{number}": 9.0 - number for number in range(8)} for key in pairs.query_ids}
        assert unjudged(pairs, run, NegativesConfig(depth=4, skip=1)) == [["d3", "d4", "d5"]] * 2


class TestBatches:
    def test_every_epoch_has_an_order_and_draws_of_its_own_which_the_seed_repeats(self) -> None:
        pairs = pairs_of({f"q{n}": {f"d{n}": 1, f"d{n + 4}": 1} for n in range(8)})

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

    def test_a_document_is_there_once_and_the_target_of_all_who_drew_it_or_have_the_text(self) -> None:
        (batch,) = epoch_batches(pairs_of({f"q{n}": {"d0": 1} for n in range(4)}), config(), 0)
        assert (batch.documents, batch.positives.tolist()) == (["d0"], [[True]] * 4)
        pairs = pairs_of({"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}, q1="same", q2="same")
        (batch,) = epoch_batches(pairs, config(), 0)
        found = {(batch.queries[row], batch.documents[column]) for row, column in batch.positives.nonzero().tolist()}
        assert found == {(0, "d1"), (0, "d2"), (1, "d1"), (1, "d2"), (2, "d3")}

    @pytest.mark.parametrize(
        ("rule", "target", "left_out"),
        [("mask", False, True), ("positive", True, False), ("negative", False, False)],
    )
    def test_known_positives_of_other_rows(self, rule: str, target: bool, left_out: bool) -> None:
        pairs = pairs_of({"q0": {"d0": 1, "d1": 0}, "q1": {"d1": 1}})
        object.__setattr__(pairs, "relevant", [["d0", "d1"], ["d1"]])  # judged, but not what can be drawn
        (batch,) = epoch_batches(pairs, config(loss={"known_positives": rule}), 0)
        place = batch.queries.index(0), batch.documents.index("d1")
        assert (bool(batch.positives[place]), bool(batch.excluded[place])) == (target, left_out)
        other = batch.queries.index(1), batch.documents.index("d0")
        assert (bool(batch.positives[other]), bool(batch.excluded[other])) == (False, False)

    def test_hard_negatives_come_behind_and_are_nobodys_target(self) -> None:
        chosen = config(batch_size=2, negatives={"per_query": 2})
        for batch in epoch_batches(one_each(4), chosen, 0, [["d8", "d9", "d10"]] * 4):
            assert set(batch.documents[2:]) <= {"d8", "d9", "d10"}
            assert len(batch.documents) >= 4
            assert not bool(batch.positives[:, 2:].any())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"freeze_base": True, "out_dim": None}, "leaves nothing to train"),
        ({"freeze_base": True, "frozen_layers": 1}, "has no effect with freeze_base"),
        ({"negatives": {"per_query": 5, "depth": 6, "skip": 2}}, "leaves fewer than 5"),
        ({"dev": {"metric": "recal@10"}}, "did you mean 'recall@10'"),
    ],
)
def test_settings_that_cannot_be(keys: dict[str, Any], words: str) -> None:
    with pytest.raises((ValidationError, UsageError), match=words):
        BiEncoderConfig.model_validate(keys)


@pytest.mark.parametrize("keys", [{"thresholds": [0.8, 0.5]}, {"thresholds": []}, {"sampling": {"min_words": 40}}])
def test_labels_that_cannot_be(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelConfig.model_validate({"collection": "nfcorpus", **keys})


@pytest.mark.parametrize(
    ("kind", "settings", "after"),
    [
        ("bert", {}, {"pooler.dense.weight", "pooler.dense.bias"}),
        ("mpnet", {}, {"pooler.dense.weight", "pooler.dense.bias"}),  # the layers' shared bias is no norm after them
        ("modernbert", {"global_attn_every_n_layers": 1}, {"final_norm.weight"}),
        ("qwen3", {"head_dim": 4, "num_key_value_heads": 2}, {"norm.weight"}),
    ],
)
def test_upper_layers_train_and_what_follows_them(kind: str, settings: dict[str, Any], after: set[str]) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "pad_token_id": 1}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 32}
    auto: Any = AutoModel
    model = auto.from_config(AutoConfig.for_model(kind, **{**sizes, **settings})).eval()
    assert freeze_lower_layers(model, 2) == 3
    trains = {name for name, weight in model.named_parameters() if weight.requires_grad}
    of_layers = {name for name in trains if ".2." in name}
    assert of_layers
    assert trains - of_layers == after
    assert torch.is_grad_enabled()
