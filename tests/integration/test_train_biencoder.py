"""Training a bi-encoder: the same bits after a kill, the same vectors everywhere, one clear line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.scripts import Done, assert_refused, call_unimoe, successful
from support.studies import toy_keys, toy_training
from support.tiny_encoders import load

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import result_name
from unimoe.metrics import score_run
from unimoe.results import read_result, result_path
from unimoe.results.logs import read_logs
from unimoe.retrieval.dense import search
from unimoe.studies.biencoder.checkpoint import read_biencoder

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def test_training_learns_and_dev_is_scored_as_evaluation_scores(tmp_path: Path) -> None:
    trainer = toy_training(tmp_path, epochs=6, learning_rate=3e-3, schedule="constant")
    facts = trainer.fit()
    assert facts["val"] > facts["start"] + 0.1
    dev, encoder = trainer.dev, load(trainer.best_dir)
    documents = sorted(dev.corpus)
    run = search(
        encoder.encode(list(dev.queries.values()), kind="query", max_length=16), list(dev.queries),
        encoder.encode([dev.corpus[key].full_text for key in documents], kind="document"), documents, 100,
    )  # fmt: skip
    assert score_run(dev.qrels, run, ["recall_of_retrieved@10"]).aggregate["recall_of_retrieved@10"] == facts["val"]
    ((_, log),) = read_logs(tmp_path / "out").items()
    assert [record["val"] for record in log if "val" in record].index(facts["val"]) == facts["epoch"] - 1


@pytest.mark.parametrize(("out_dim", "pooling"), [(16, "mean"), (None, "cls")])
def test_the_checkpoint_has_the_same_vectors_in_sentence_transformers(
    out_dim: int | None, pooling: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = {"base": str(tmp_path / "encoder"), "pooling": pooling, "query_prefix": "query "}
    trainer = toy_training(tmp_path, epochs=1, out_dim=out_dim, encoder=encoder)
    trainer.fit()
    texts = ["topic1 all noise3", "a much longer text " * 20, "topic7"]
    theirs = SentenceTransformer(str(trainer.last_dir), device="cpu")
    ours = load(trainer.last_dir)
    assert np.allclose(ours.encode(texts), theirs.encode(texts), atol=1e-6)
    assert np.allclose(ours.encode(texts, kind="query"), theirs.encode_query(texts), atol=1e-6)
    with torch.no_grad():
        trainer.model.eval()
        assert np.allclose(ours.encode(texts), trainer.model(ours.token_ids(texts)).numpy(), atol=1e-6)
    assert ours.dimension == (out_dim or 64)
    manifest = read_biencoder(trainer.last_dir)
    assert manifest.training.steps == trainer.steps
    assert ModelCard.load(trainer.last_dir / "README.md").data.library_name == "sentence-transformers"


def test_a_loss_that_is_not_finite_names_the_batch_and_leaves_the_best(tmp_path: Path) -> None:
    trainer = toy_training(tmp_path)

    def spoil(step: int, facts: dict[str, float]) -> None:
        if step == trainer.steps // 2 + 1:
            next(trainer.model.parameters()).data.fill_(float("nan"))

    with pytest.raises(DataError, match=r"step 6: the loss is nan in the batch of the queries train\d\d, .*best"):
        trainer.fit(spoil)
    assert np.isfinite(load(trainer.best_dir).encode(["topic1"])).all()


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    toy_keys(tmp_path)
    (tmp_path / "empty").mkdir()
    trainer = toy_training(tmp_path, epochs=1)
    trainer.fit()
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"out_dim": 65}, UsageError, r"out_dim 65 is above the 64 dimensions of"),
        ({"frozen_layers": 2}, UsageError, r"frozen_layers 2: .* has 2 layers"),
        ({"encoder": {"base": str(tmp_path / "empty")}}, DataError, "neither "),
        (
            {"encoder": {"base": str(trainer.last_dir)}},
            DataError,
            "is of Transformer, Pooling, Dense, Normalize; train",
        ),
        ({"relevance_threshold": 3}, DataError, "has a positive in the corpus"),
    ]
    for keys, kind, words in refused:
        with pytest.raises(kind, match=words):
            toy_training(tmp_path, **keys)
    weight = trainer.last_dir / "2_Dense" / "model.safetensors"
    weight.write_bytes(weight.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match="safetensors: differs from the manifest"):
        toy_training(tmp_path, epochs=1).fit()


class TestCommand:
    def train(self, folder: Path, *more: str) -> Done:
        keys = toy_keys(folder)
        settings = [f"{key}={json.dumps(value)}" for key, value in keys.items() if key != "output_dir"]
        return call_unimoe(
            "train-biencoder", "--device", "cpu",
            "--output-dir", keys["output_dir"], *(part for text in settings for part in ("--set", text)), *more,
        )  # fmt: skip

    def test_before_and_after_over_seeds_in_one_folder(self, tmp_path: Path) -> None:
        first = successful(self.train(tmp_path, "--seed", "0"))
        assert "biencoder (after) against encoder (before), 18 queries" in " ".join(first.stdout.split())
        second = successful(self.train(tmp_path, "--seed", "1"))
        name = result_name(toy_keys(tmp_path)["collection"])
        found = read_result(result_path(tmp_path / "out", "biencoder", 1, "retrieval", name))
        assert found.identity.checkpoint == "best"
        assert found.training is not None
        assert found.training.embedding_examples > 0
        again = self.train(tmp_path, "--seed", "1")
        assert again.stdout == second.stdout
        assert again.stderr.count("already done") == 7

    def test_seeds_that_keep_the_untrained_encoder_are_reported_with_a_caveat(self, tmp_path: Path) -> None:
        still = ("--set", "learning_rate=1e-30", "--set", "out_dim=null")
        for seed in ("0", "1"):
            done = successful(self.train(tmp_path, "--seed", seed, *still))
            assert "(epoch 0)" in done.stderr
        assert "biencoder seed 0, biencoder seed 1 are one checkpoint" in " ".join(done.stdout.split())

    def test_bad_input_is_one_line(self, tmp_path: Path) -> None:
        assert_refused(self.train(tmp_path, "--set", "learning_rate=0.0"), 2, "learning_rate", "above 0")
        assert_refused(self.train(tmp_path, "--set", "margin=0.1"), 2, "margin", "unknown key")
        assert_refused(self.train(tmp_path, "--set", "splits.train=nowhere"), 2, "no split 'nowhere'")
        assert_refused(self.train(tmp_path, "--dataset", "scifcat"), 2, "did you mean 'scifact'")
