"""Training a head: the best step is kept, nothing is taken for what it is not, one clear line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.heads import WordEmbedder, topics_folder, toy_config, toy_data
from support.trainings import KilledError, kill_after

from unimoe.core.errors import DataError
from unimoe.metrics import score_run
from unimoe.models.tensor_files import save_tensors
from unimoe.results.logs import read_logs
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.eggroll.fp4 import dequantize, quantize
from unimoe.studies.heads.model import evaluate_head, initial_weight, load_head
from unimoe.studies.heads.trainer import HeadTrainer

pytestmark = pytest.mark.usefixtures("tmp_cache")


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return toy_config(topics_folder(tmp_path / "collection"), tmp_path / "out", method="infonce", learning_rate=1e-2)


@pytest.fixture
def data(config: TrainConfig) -> HeadData:
    return toy_data(config)


def changed(config: TrainConfig, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(config.model_dump() | changes)


def test_training_helps_and_reports_the_cutoff_it_was_asked_for(config: TrainConfig, data: HeadData) -> None:
    config = changed(config, num_steps=40, ndcg_k=20)
    trainer = HeadTrainer(config, data)
    results = trainer.train()
    assert {"train/ndcg@20", "val/ndcg@20", "test/ndcg@20", "test/mrr@10", "best_step"} <= set(results)
    start = evaluate_head(trainer.initial(), data.test, config).aggregate["ndcg@20"]
    assert results["test/ndcg@20"] > start + 0.1
    weight, _ = trainer.head()
    assert results["val/ndcg@20"] == evaluate_head(weight, data.dev, config).aggregate["ndcg@20"]
    assert results["val/ndcg@20"] == pytest.approx(trainer.fit()["val"])


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


def test_a_state_of_another_training_is_refused(config: TrainConfig, data: HeadData) -> None:
    trainer = HeadTrainer(config, data)
    with pytest.raises(KilledError):
        trainer.fit(kill_after(6))
    with pytest.raises(DataError, match=r"state\.safetensors is of another training"):
        HeadTrainer(changed(config, temperature=0.5), data).fit()
    trainer.state.path.write_bytes(b"short")
    with pytest.raises(DataError, match=r"damaged training state .* delete it to start over"):
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


def test_one_query_to_train_on(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c", {"train": 1, "dev": 2, "test": 2})
    config = toy_config(folder, tmp_path / "out", num_steps=3)
    assert HeadTrainer(config, toy_data(config)).train()["steps"] == 3


def test_seeds_differ_and_repeat(config: TrainConfig, data: HeadData, tmp_path: Path) -> None:
    def fitness(seed: int, place: str) -> list[float]:
        trainer = HeadTrainer(changed(config, method="eggroll", seed=seed, output_dir=str(tmp_path / place)), data)
        trainer.fit()
        return [json.loads(line)["fitness"] for line in trainer.state.log_path.read_text().splitlines()]

    assert fitness(0, "a") == fitness(0, "b") != fitness(1, "a")
