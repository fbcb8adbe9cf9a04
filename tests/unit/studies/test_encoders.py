"""Lists that train a cross-encoder, and batches, negatives and losses of bi-encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from unimoe.config.labels import TrainingLabelConfig
from unimoe.config.losses import LOSSES
from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Collection, Document
from unimoe.studies.biencoder.config import BiEncoderConfig, ContrastiveConfig, NegativesConfig
from unimoe.studies.biencoder.data import TrainingPairs, batches_per_epoch, epoch_batches, training_pairs, unjudged
from unimoe.studies.biencoder.trainer import batch_backward, contrastive_loss
from unimoe.studies.common.trained_model import freeze_lower_layers
from unimoe.studies.cross_encoder import data

DOCUMENTS = {f"d{number}": Document("", f"text {number}") for number in range(12)}


def pairs_of(qrels: dict[str, dict[str, int]], threshold: int = 1, **texts: str) -> TrainingPairs:
    queries = {key: texts.get(key, f"text of {key}") for key in qrels}
    return training_pairs(Collection("toy", "train", DOCUMENTS, queries, qrels), threshold)


def config(**changes: Any) -> BiEncoderConfig:
    return BiEncoderConfig.model_validate({"batch_size": 4, **changes})


def one_each(count: int) -> TrainingPairs:
    return pairs_of({f"q{number}": {f"d{number}": 1} for number in range(count)})


def test_queries_without_a_positive_in_the_corpus_are_dropped_and_counted() -> None:
    pairs = pairs_of({"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 0}, "q3": {"gone": 2}, "q4": {"d4": 1}}, 2)
    assert (pairs.query_ids, pairs.own, pairs.dropped) == (["q1"], [["d1"]], 3)
    with pytest.raises(DataError, match="no query of split 'train' has a positive"):
        pairs_of({"q1": {"d1": 1}}, 2)


def test_hard_negatives_are_the_best_documents_that_no_query_of_the_text_is_judged_with() -> None:
    pairs = pairs_of({"q1": {"d1": 1}, "q2": {"d2": 1}}, q1="same", q2="same")
    run = {key: {f"d{number}": 9.0 - number for number in range(8)} for key in pairs.query_ids}
    found = unjudged(pairs, run, NegativesConfig(depth=4, skip=1))
    assert found == [["d3", "d4", "d5"]] * 2
    for batch in epoch_batches(one_each(2), config(batch_size=2, negatives={"per_query": 2}), 0, found):
        assert set(batch.documents[2:]) <= {"d3", "d4", "d5"}  # they come behind, and are nobody's target
        assert len(batch.documents) >= 4
        assert not bool(batch.positives[:, 2:].any())


def test_every_epoch_has_an_order_and_draws_of_its_own_which_the_seed_repeats_in_whole_batches() -> None:
    pairs = pairs_of({f"q{n}": {f"d{n}": 1, f"d{n + 4}": 1} for n in range(8)})

    def drawn(epoch: int, seed: int = 0) -> list[tuple[int, str]]:
        batches = epoch_batches(pairs, config(seed=seed), epoch)
        return [(query, batch.documents[0]) for batch in batches for query in batch.queries]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(0) != drawn(0, seed=1)
    assert sorted(query for query, _ in drawn(0)) == list(range(8))
    assert batches_per_epoch(one_each(11), config()) == 2
    (batch,) = epoch_batches(one_each(3), config(), 0)  # one at least
    assert len(batch.queries) == 3


def test_a_document_is_there_once_and_the_target_of_all_who_drew_it_or_have_the_text() -> None:
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
def test_known_positives_of_other_rows(rule: str, target: bool, left_out: bool) -> None:
    pairs = pairs_of({"q0": {"d0": 1, "d1": 0}, "q1": {"d1": 1}})
    object.__setattr__(pairs, "relevant", [["d0", "d1"], ["d1"]])  # judged, but not what can be drawn
    (batch,) = epoch_batches(pairs, config(loss={"known_positives": rule}), 0)
    place = batch.queries.index(0), batch.documents.index("d1")
    assert (bool(batch.positives[place]), bool(batch.excluded[place])) == (target, left_out)
    other = batch.queries.index(1), batch.documents.index("d0")
    assert (bool(batch.positives[other]), bool(batch.excluded[other])) == (False, False)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"freeze_base": True, "out_dim": None}, "leaves nothing to train"),
        ({"freeze_base": True, "frozen_layers": 1}, "has no effect with freeze_base"),
        ({"frozen_layers": 1, "lora": {"rank": 8}}, "leave out freeze_base and frozen_layers"),
        ({"freeze_base": True, "lora": {}}, "leave out freeze_base and frozen_layers"),
        ({"negatives": {"per_query": 5, "depth": 6, "skip": 2}}, "leaves fewer than 5"),
        ({"dev": {"metric": "recal@10"}}, "did you mean 'recall@10'"),
        ({"collection": "nfcorpus", "thresholds": [0.8, 0.5]}, "thresholds"),
        ({"collection": "nfcorpus", "thresholds": []}, "thresholds"),
        ({"collection": "nfcorpus", "sampling": {"min_words": 40}}, "min_words"),
    ],
)
def test_settings_that_cannot_be(keys: dict[str, Any], words: str) -> None:
    with pytest.raises((ValidationError, UsageError), match=words):
        (TrainingLabelConfig if "collection" in keys else BiEncoderConfig).model_validate(keys)


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


def by_loop(queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, c: ContrastiveConfig) -> float:
    """The definition, row by row."""

    def one_way(rows: Tensor, columns: Tensor, targets: Tensor, left_out: Tensor) -> float:
        losses = []
        for row, mine, out in zip(rows, targets, left_out, strict=True):
            if mine.any():
                logits = (columns @ row - c.margin * mine) / c.temperature
                losses.append(float(logits[~out].exp().sum().log() - logits[mine].mean()))
        return sum(losses) / len(losses)

    forward = one_way(queries, documents, positives, excluded)
    return (forward + one_way(documents, queries, positives.T, excluded.T)) / 2 if c.symmetric else forward


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_the_contrastive_loss_is_that_of_a_loop_over_its_definition(symmetric: bool, margin: float) -> None:
    torch.manual_seed(0)
    queries, documents = (nn.functional.normalize(torch.randn(n, 6), dim=1) for n in (5, 9))
    positives = torch.zeros(5, 9, dtype=torch.bool)
    positives[range(5), [0, 1, 2, 3, 3]] = True
    positives[0, 1] = True  # and columns 4 to 8 are hard negatives
    excluded = (torch.rand(5, 9) < 0.2) & ~positives
    config = ContrastiveConfig(temperature=0.3, margin=margin, symmetric=symmetric)
    loss = contrastive_loss(queries, documents, positives, excluded, config)
    assert float(loss) == pytest.approx(by_loop(queries, documents, positives, excluded, config), abs=1e-5)


def loss_and_gradient(chunk_size: int | None, dropout: float = 0.0) -> tuple[float, Tensor]:
    """Those of texts that are vectors of different lengths, summed up and projected."""
    torch.manual_seed(1)
    layer = nn.Linear(1, 4).double()
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randn(1 + place % 4, generator=generator).double() for place in range(13)]
    positives = torch.eye(5, 8, dtype=torch.bool)

    def embed(inputs: Sequence[Any]) -> Tensor:
        summed = torch.stack([values.sum() for values in inputs])[:, None]
        hidden = nn.functional.dropout(torch.tanh(layer(summed)), dropout)
        return nn.functional.normalize(hidden + 0.1, dim=1)

    def loss_of(queries: Tensor, documents: Tensor) -> Tensor:
        return contrastive_loss(queries, documents, positives, torch.zeros_like(positives), ContrastiveConfig())

    loss = batch_backward(embed, texts[:5], texts[5:], loss_of, weight=0.5, chunk_size=chunk_size, seed=7)
    assert layer.weight.grad is not None
    return loss, layer.weight.grad


@pytest.mark.parametrize(
    ("chunk_size", "dropout"),
    [(1, 0.0), (2, 0.0), (3, 0.0), (8, 0.0), (8, 0.3)],  # of 8, queries are one part, documents another, as of all
)
def test_the_gradient_of_chunks_is_that_of_the_whole_batch(chunk_size: int, dropout: float) -> None:
    loss, gradient = loss_and_gradient(None, dropout)
    again, chunked = loss_and_gradient(chunk_size, dropout)
    assert again == pytest.approx(loss, abs=1e-12)
    assert torch.allclose(gradient, chunked, atol=1e-10)
    assert float(gradient.abs().max()) > 1e-4


def row(query_id: int, selected: list[int], **changes: Any) -> dict[str, Any]:
    """A row as the hub's MS MARCO v1.1 has it, columns that are not read included."""
    texts = [f"passage {query_id}-{place}" for place in range(len(selected))]
    passages = {"is_selected": selected, "passage_text": texts, "url": [""] * len(selected)}
    return {"query_id": query_id, "query": f"query {query_id}", "passages": passages, "answers": []} | changes


def one(labels: tuple[float, ...], query_id: str = "q") -> data.LabelledList:
    return data.LabelledList(query_id, "query", tuple(f"d{place}" for place in range(len(labels))), labels)


def test_passages_are_sorted_by_label_and_cut_and_samples_of_lists_are_nested() -> None:
    made = data.ms_marco_lists([row(7, [0, 1, 0, 1]), row(1, [0, 0]), row(3, [])], max_docs=3)
    assert made.lists == (
        data.LabelledList("7", "query 7", ("passage 7-1", "passage 7-3", "passage 7-0"), (1.0, 1.0, 0.0)),
    )
    assert made.notes == ["2 queries left out: no passage is selected"]
    lists = data.LabelledLists(tuple(one((1.0, 0.0), str(number)) for number in range(10)))
    assert set(lists.sample(3).lists) < set(lists.sample(6).lists)
    assert lists.sample(None) is lists
    changed = data.LabelledLists((one((1.0, 0.5), "0"), *lists.lists[1:]))
    assert len({lists.content_hash, changed.content_hash, lists.sample(9).content_hash}) == 3


def test_a_seeded_part_is_held_out_and_reranked_without_a_trace_of_its_order() -> None:
    made = data.ms_marco_lists([row(number, [0, 1, 0]) for number in range(50)], max_docs=None)
    train, held_out = made.split(30, seed=12)
    assert (len(train.lists), len(held_out.lists)) == (20, 30)
    assert {*train.lists, *held_out.lists} == {*made.lists}
    assert made.split(30, seed=12) == (train, held_out)
    assert made.split(30, seed=13)[1] != held_out
    with pytest.raises(DataError, match=r"lower lists\.held_out"):
        made.split(50, seed=12)
    reranked = data.held_out_set(held_out.lists)
    firsts = {key: max(scores) for key, scores in reranked.candidates.items()}  # what a tie would put first
    assert 0 < sum(reranked.collection.qrels[key][name] for key, name in firsts.items()) < 30
    assert all(set(scores.values()) == {0.0} for scores in reranked.candidates.values())


def test_a_collections_list_has_grades_first_then_the_candidates_in_their_order() -> None:
    qrels = {"q1": {"a": 1, "b": 2, "c": 2, "h": 0}, "q2": {"a": 0}, "q3": {"d": 1, "elsewhere": 2}}
    corpus = {name: Document("", f"text {name}") for name in "abcdefgh"}
    collection = Collection("graded", "train", corpus, {"q1": "first", "q2": "second", "q3": "third"}, qrels)
    run = {"q1": {"h": 5.0, "c": 4.0, "e": 3.0, "a": 2.0, "f": 1.0}, "q2": {"a": 1.0}, "q3": {}}
    made = data.collection_lists(collection, run, max_docs=None, max_positives=None)
    first = made.lists[0]
    assert first.documents == tuple(f"text {name}" for name in "cbahef")  # c was found, b was not
    assert first.labels == (2.0, 2.0, 1.0, 0.0, 0.0, 0.0)
    assert [found.query_id for found in made.lists] == ["q1", "q3"]
    assert made.notes == ["1 queries left out: no relevant document"]
    cut, few = (data.collection_lists(collection, run, 4, most).lists[0] for most in (None, 1))
    assert cut.documents == tuple(f"text {name}" for name in "cbhe"), "positives leave room for negatives"
    assert few.labels == (2.0, 0.0, 0.0, 0.0)


def test_what_teaches_a_loss_no_order_is_left_out_and_counted() -> None:
    labels = ((1.0, 0.0), (1.0, 1.0), (1.0,), (2.0, 1.0, 0.0))
    lists = data.LabelledLists(tuple(map(one, labels)), {"no relevant document": 3})

    def fit(name: str, **options: Any) -> data.LabelledLists:
        return data.fit_for(LOSSES[name].model_validate(options), lists)

    found = fit("lambdaloss")
    assert found.lists == (lists.lists[0], lists.lists[3])
    assert found.dropped == {"no relevant document": 3, "all labels equal": 1, "fewer than two documents": 1}
    assert len(fit("plistmle").lists) == 3, "equal labels stay where their order is taught"
    assert len(fit("plistmle", respect_input_order=False, ties="shuffle").lists) == 2
    assert [len(found.labels) for found in fit("yes_no").lists] == [2, 2, 1, 3], "pairs are judged alone"
    assert fit("yes_no").lists[3].labels == (1.0, 1.0, 0.0)
    assert fit("marginmse").lists
    with pytest.raises(DataError, match=r"no list is left to train .*1 with fewer than two documents"):
        data.fit_for(LOSSES["plistmle"](), data.LabelledLists((one((1.0,)),)))
    with pytest.raises(DataError, match="marginmse needs graded labels"):
        data.fit_for(LOSSES["marginmse"](), data.LabelledLists((one((1.0, 0.0)),)))
