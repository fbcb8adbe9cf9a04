"""Heads: their losses, their pools with positives in training alone, and the best step that training keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.heads import WordEmbedder, topics_folder, toy_config, toy_data
from torch import Tensor
from torch.nn.functional import pad

from unimoe.core.errors import DataError
from unimoe.data.collection import Collection, Document
from unimoe.metrics import score_run
from unimoe.models.tensor_files import save_tensors
from unimoe.results.logs import read_logs
from unimoe.retrieval.embeddings import Embedded
from unimoe.studies.heads.config import PoolConfig, TrainConfig, gradient_methods
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.eggroll.fp4 import dequantize, quantize
from unimoe.studies.heads.methods import head_loss
from unimoe.studies.heads.model import initial_weight, load_head
from unimoe.studies.heads.pools import candidates_of, pool_set
from unimoe.studies.heads.trainer import HeadTrainer

pytestmark = pytest.mark.usefixtures("tmp_cache")


OVER_POOLS = ["infonce", "supcon", "lambdaloss", "approxndcg", "listnet"]


def loss_of(name: str, scores: Tensor, grades: Tensor, valid: Tensor | None = None, temperature: float = 0.5) -> Tensor:
    valid = torch.ones_like(scores, dtype=torch.bool) if valid is None else valid
    config = TrainConfig(temperature=temperature, ndcg_k=4)
    return head_loss(name, scores, grades, valid, config, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", gradient_methods())
def test_padding_and_queries_without_a_positive_change_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 6, generator=generator)
    grades = (torch.rand(3, 6, generator=generator) < 0.4).float()
    grades[:, 1] = 2.0
    expected = loss_of(name, scores, grades).item()
    valid = pad(torch.ones(3, 6, dtype=torch.bool), (0, 4), value=False)
    padded = loss_of(name, pad(scores, (0, 4), value=9.0), pad(grades, (0, 4), value=9.0), valid)
    assert padded.item() == pytest.approx(expected, rel=1e-6)
    more = loss_of(name, torch.cat([scores, torch.randn(1, 6)]), torch.cat([grades, torch.zeros(1, 6)]))
    assert more.item() == pytest.approx(expected, rel=1e-6)
    assert loss_of(name, scores, torch.zeros_like(grades)).item() == 0.0
    if name in OVER_POOLS:
        order = torch.tensor([5, 2, 0, 1, 4, 3])
        assert loss_of(name, scores[:, order], grades[:, order]).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", gradient_methods())
def test_the_gradient_raises_the_positive_and_lowers_the_negative(name: str) -> None:
    scores = torch.tensor([[0.1, 0.3, 0.2]], requires_grad=True)
    (gradient,) = torch.autograd.grad(loss_of(name, scores, torch.tensor([[1.0, 0.0, 0.0]])), scores)
    assert gradient[0, 0] < 0
    if name in OVER_POOLS:  # others estimate it from samples
        assert min(gradient[0, 1:]) > 0


@pytest.mark.parametrize("name", OVER_POOLS)
def test_a_pair_far_out_of_order_still_has_a_gradient(name: str) -> None:
    """At temperature .01 the positive lies 100 below: a sigmoid of that underflows in float32."""
    scores = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss = loss_of(name, scores, torch.tensor([[1.0, 0.0]]), temperature=0.01)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert bool(gradient.isfinite().all())
    if name != "approxndcg":  # whose sigmoids are flat there, as nDCG is
        assert gradient[0, 0] < -1.0


def vectors(rows: dict[str, list[float]]) -> Embedded:
    ids = sorted(rows)
    return Embedded(ids, np.array([rows[key] for key in ids], dtype=np.float32))


DOCUMENTS = vectors({"a": [1, 0], "b": [0.9, 0.1], "c": [0.5, 0.5], "d": [0.1, 0.9], "e": [-1, 0]})
QUERIES = vectors({"q": [1, 0], "r": [0, 1], "s": [1, 0]})

COLLECTION = Collection(
    "tiny",
    "test",
    {key: Document("", key) for key in DOCUMENTS.ids},
    {"q": "q", "r": "r", "s": "s"},
    {"q": {"a": 1, "e": 2, "gone": 1}, "r": {"a": 1, "c": 0}, "s": {"b": 1, "d": -1}},
)


def candidates(depth: int = 3, *, inject: bool, relevant: str = "", queries: Embedded = QUERIES) -> dict[str, set[str]]:
    """Return the pools by the encoder; with ``relevant``, those of the query q with other judgments."""
    judged = {"q": dict.fromkeys(relevant, 1)} if relevant else COLLECTION.qrels
    collection = Collection("tiny", "t", COLLECTION.corpus, COLLECTION.queries, judged)
    run = candidates_of(collection, PoolConfig(source="dense", depth=depth), queries, DOCUMENTS, inject=inject)
    return {query: set(found) for query, found in run.items()}


def data_in(folder: Path, depth: int = 6, seed: int = 0) -> HeadData:
    pools = {"source": "dense", "depth": depth}
    config = toy_config(topics_folder(folder / "c"), folder / "out", pools=pools)
    return toy_data(config, WordEmbedder(seed=seed))


def test_training_pools_alone_get_positives_that_were_not_found_in_place_of_the_last_negatives() -> None:
    assert candidates(inject=False) == {"q": {*"abc"}, "r": {*"bcd"}, "s": {*"abc"}}
    assert candidates(inject=True) == {"q": {*"abe"}, "r": {*"acd"}, "s": {*"abc"}}


def test_positives_that_were_not_found_fill_half_of_a_training_pool_at_most() -> None:
    assert candidates(2, inject=True, relevant="acde")["q"] == {*"ab"}  # half of it is positive already
    far = vectors({"q": [-1, 0]})
    assert len(candidates(inject=True, relevant="acde", queries=far)["q"] & {*"acde"}) == 3
    assert candidates(inject=True, relevant="de")["q"] == {*"ade"}
    one = candidates(2, inject=True, relevant="de")["q"]
    assert len(one) == 2
    assert "a" in one


def test_places_grades_ranks_and_ideal() -> None:
    run = candidates_of(COLLECTION, PoolConfig(source="dense", depth=3), QUERIES, DOCUMENTS, inject=True)
    pools = pool_set("train", COLLECTION, run, QUERIES, DOCUMENTS, training=True)
    assert pools.query_ids == ["q", "r", "s"]
    assert pools.document_ids == [["e", "b", "a"], ["d", "c", "a"], ["c", "b", "a"]]
    assert pools.grades.tolist() == [[2, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert pools.ranks.tolist() == [[3, 2, 1], [1, 2, 3], [3, 2, 1]]
    assert [judged.tolist() for judged in pools.judged] == [[1, 2, 1], [1], [1]]  # also what is not in the corpus
    batch = pools.batch([2, 0])
    assert batch.places == [2, 0]
    assert torch.equal(batch.documents[1, 0], torch.tensor([-1.0, 0.0]))
    assert torch.equal(batch.queries, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_queries_without_a_positive_are_listed_and_count_zero_but_train_nothing() -> None:
    run = candidates_of(COLLECTION, PoolConfig(source="dense", depth=3), QUERIES, DOCUMENTS, inject=False)
    test = pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)
    assert (test.without_positive, test.query_ids) == (["r"], ["q", "r", "s"])
    scores = score_run(test.qrels, test.run(torch.tensor([[3.0, 2, 1]] * 3)), ["ndcg@10"])
    assert scores.per_query["ndcg@10"]["r"] == 0.0
    assert scores.aggregate["ndcg@10"] == pytest.approx(sum(scores.per_query["ndcg@10"].values()) / 3)
    train = pool_set("train", COLLECTION, run, QUERIES, DOCUMENTS, training=True)
    assert (train.without_positive, train.query_ids) == (["r"], ["q", "s"])


@pytest.mark.parametrize("name", ["train", "dev"])
def test_nothing_to_learn_or_to_choose_by_is_refused(name: str) -> None:
    run = {"q": {"b": 1.0}, "r": {"b": 1.0}, "s": {"a": 1.0}}
    words = rf"tiny, {name}: no query has a relevant document in its pool; raise pools"
    with pytest.raises(DataError, match=words):
        pool_set(name, COLLECTION, run, QUERIES, DOCUMENTS, training=name == "train")
    assert len(pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)) == 3


def test_what_no_head_can_reach_is_said_and_another_encoder_is_other_data(tmp_path: Path) -> None:
    found = data_in(tmp_path / "a", depth=3)
    assert all(bool((pool > 0).any()) for pool in found.train.grades)
    assert found.test.without_positive
    assert {query: set(ids) for query, ids in found.candidates.items()} == {
        query: set(ids) for query, ids in zip(found.test.query_ids, found.test.document_ids, strict=True)
    }
    (note,) = (note for note in found.notes if note.startswith("test:"))
    assert f"{len(found.test.without_positive)} queries without a relevant document" in note
    assert "count 0 whatever the head" in note
    assert found.content_hash == data_in(tmp_path / "b", depth=3).content_hash
    assert found.content_hash != data_in(tmp_path / "c", depth=3, seed=1).content_hash


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return toy_config(topics_folder(tmp_path / "collection"), tmp_path / "out", method="infonce", learning_rate=1e-2)


@pytest.fixture
def data(config: TrainConfig) -> HeadData:
    return toy_data(config)


def changed(config: TrainConfig, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(config.model_dump() | changes)


def test_the_head_that_is_kept_is_the_best_on_dev_and_is_not_trained_again(config: TrainConfig, data: HeadData) -> None:
    trainer, steps = HeadTrainer(changed(config, num_steps=20, eval_every=2), data), list[int]()
    facts = trainer.fit()
    log = read_logs(Path(config.output_dir))["infonce", 0]
    assert [record["step"] for record in log] == [*range(1, 21)]
    seen = {0: facts["start"]} | {record["step"]: record["val"] for record in log if "val" in record}
    assert facts["val"] == max(seen.values())
    assert facts["best_step"] == min(step for step, value in seen.items() if value == facts["val"])
    assert trainer.fit(lambda step, facts: steps.append(step)) == facts
    assert steps == []


def test_a_head_in_four_bits_that_only_got_worse_is_reported_in_four_bits(config: TrainConfig, data: HeadData) -> None:
    trainer = HeadTrainer(changed(config, method="eggroll", precision="fp4", learning_rate=30.0), data)
    facts, (weight, _) = trainer.fit(), trainer.head()
    assert facts["best_step"] == 0
    in_float32 = HeadTrainer(changed(config, method="eggroll"), data).initial()
    assert not torch.equal(weight, in_float32)
    assert torch.equal(weight, dequantize(quantize(in_float32)))


def test_zero_shot_is_the_encoder_itself_and_has_no_seed(config: TrainConfig, data: HeadData) -> None:
    trainer = HeadTrainer(changed(config, method="zero_shot"), data)
    results = trainer.train()
    cosines = (data.test.documents[data.test.rows] @ data.test.queries.unsqueeze(2)).squeeze(2)
    expected = score_run(data.test.qrels, data.test.run(cosines), ["ndcg@10"])
    assert results["test/ndcg@10"] == pytest.approx(expected.aggregate["ndcg@10"])
    assert trainer.seed is None
    assert results["steps"] == 0
    assert "seed_none" in str(trainer.head_path)


def test_batches_depend_on_the_seed_alone_and_an_epoch_sees_every_query_once(
    config: TrainConfig, data: HeadData
) -> None:
    one, two = HeadTrainer(config, data), HeadTrainer(changed(config, method="listnet"), data)
    assert [one.batch(step) for step in range(9)] == [two.batch(step) for step in range(9)]
    assert sorted(place for step in range(3) for place in one.batch(step)) == [*range(36)]
    assert one.batch(0) != one.batch(3) != HeadTrainer(changed(config, seed=1), data).batch(3)


def test_a_finished_head_of_another_training_is_refused(config: TrainConfig, data: HeadData) -> None:
    trainer = HeadTrainer(config, data)
    trainer.fit()
    words = r"head\.safetensors is of another training: config\.learning_rate was .* choose another output_dir"
    with pytest.raises(DataError, match=words):
        HeadTrainer(changed(config, learning_rate=1e-4), data).fit()
    with pytest.raises(DataError, match="is of another training"):
        HeadTrainer(config, toy_data(config, WordEmbedder(seed=1))).fit()
    trainer.head_path.write_bytes(trainer.head_path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"head\.safetensors: damaged, or no head"):
        HeadTrainer(config, data).fit()


def test_no_head_and_a_head_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such head; train it first"):
        load_head(tmp_path / "none.safetensors")
    save_tensors(tmp_path / "head.safetensors", {"weight": torch.ones(2, 5)}, {})
    with pytest.raises(DataError, match="embeddings of 5 dimensions, these have 7; use the encoder"):
        load_head(tmp_path / "head.safetensors", inputs=7)


def test_numbers_that_are_not_finite_are_refused(config: TrainConfig, data: HeadData) -> None:
    config = changed(config, optimizer="sgd", learning_rate=1e38, scoring="dot")
    with pytest.raises(DataError, match=r"infonce, seed 0, step \d+: a weight is not finite; lower learning_rate"):
        HeadTrainer(config, data).fit()
    documents = torch.ones(3, 4)
    documents[1, 2] = torch.nan
    with pytest.raises(DataError, match="an embedding is not finite"):
        initial_weight("pca", documents, 2, seed=0)
