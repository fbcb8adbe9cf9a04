"""Bi-encoders: pseudo-judgments to train on, and a training that evaluation and sentence-transformers agree with."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import CrossEncoder
from support.scripts import Done, assert_refused, call_unimoe, successful
from support.studies import topics_folder, toy_keys, toy_training
from support.tiny_models import load, save_tiny_cross_encoder, save_tiny_encoder, save_tiny_model

import unimoe
from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.labels import SamplingConfig, TrainingLabelConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection, result_name
from unimoe.data.collection import Document, assemble
from unimoe.evaluation import engines
from unimoe.evaluation.labels import grades_of
from unimoe.evaluation.training_labels import _LabelsMade, _print_labels, _write_labels, sample_queries
from unimoe.metrics import score_run
from unimoe.results import read_result, result_path
from unimoe.results.logs import read_logs
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import search
from unimoe.studies.biencoder.model import read_biencoder

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def test_what_is_no_query_is_left_out_by_reason() -> None:
    of_reasons = {
        "a duplicate": "GOOD  question here", "too few words": "one", "too long": "word " * 40,
        "too few letters": "?! ... ## !!", "characters that cannot be printed": "bad \x00 control",
    }  # fmt: skip
    queries = {"a": "good question here", "g": "什么是 检索 模型"}
    found, counts = sample_queries(queries | of_reasons, SamplingConfig(queries=None))
    assert found == queries
    assert counts == {"": 2} | dict.fromkeys(of_reasons, 1)
    with pytest.raises(DataError, match=r"none of 1 queries passes \(too few words 1\)"):
        sample_queries({"a": "one"}, SamplingConfig())


def test_grades_are_numbers_of_thresholds_reached_and_their_agreement_is_that_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pseudo = {"q": {"a": 2, "b": 1, "c": 0}, "r": {"a": 1}, "alone": {"z": 1}}
    _print_labels(pseudo, 2, {"q": {"a": 1, "c": 1, "x": 2, "b": 0}, "r": {"b": 1}, "other": {"a": 1}})
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("grade 2 1 pairs grade 1 3 pairs queries 3 with a pseudo-positive precision 0.3333 (1 of 3")
    assert "relevant, 2 queries; " in shown
    assert "recall 0.2500 (of 4 judged relevant, 2 of which are candidates)" in shown
    _print_labels(pseudo, 2, {"other": {"a": 1}})
    assert "no labelled query has real judgments" in capsys.readouterr().out
    scores = {"q": {"a": 0.9, "b": 0.8, "c": 0.5, "d": 0.49}}
    assert grades_of(scores, [0.5, 0.8]) == {"q": {"a": 2, "b": 2, "c": 1, "d": 0}}
    with pytest.raises(DataError, match=r"no pair reaches the threshold 0\.95, the highest P.yes. is 0\.900"):
        grades_of(scores, [0.95])


FUNCTIONS = """
calls = []

def overlap(pairs):
    calls.append({query for query, _ in pairs})
    words = [(set(query.split()), set(document.split())) for query, document in pairs]
    return [len(query & document) / len(query) for query, document in words]

def stated(pairs):
    return overlap(pairs)
stated.identity = "overlap, version 1"

def counted(pairs):
    return [1.0 + len(document) for _, document in pairs]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection, a causal model, a cross-encoder, an encoder, and a module of functions in the working folder."""
    topics_folder(tmp_path / "collection")
    save_tiny_model(tmp_path / "model")
    save_tiny_cross_encoder(tmp_path / "ce")
    save_tiny_encoder(tmp_path / "encoder")
    module = re.sub(r"\W", "_", f"my_graders_{tmp_path}")
    (tmp_path / f"{module}.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODULE", module)
    return tmp_path


def label(folder: Path, output: str, model: str, *settings: str) -> Done:
    given = ("depth=10", "sampling.queries=6", "prompt={template: qwen3}", "max_length=256", *settings)
    return call_unimoe(
        "label", "--device", "cpu", "--dataset", f"path:{folder / 'collection'}", "--output-dir", folder / output,
        "--model", model, *(word for setting in given for word in ("--set", setting)),
    )  # fmt: skip


def test_a_collection_comes_out_that_can_be_trained_on(here: Path) -> None:
    settings = ("thresholds=[0.0001, 0.5]",)
    done = successful(label(here, "labelled", str(here / "model"), *settings))
    assert "precision" in done.stdout
    assert "6 of " in done.stderr
    labelled = load_collection(f"path:{here / 'labelled'}", "train")
    real = load_collection(f"path:{here / 'collection'}", "test")
    assert len(labelled.qrels) == 6
    assert all(len(grades) == 10 for grades in labelled.qrels.values())
    assert load_collection(f"path:{here / 'labelled'}", "test").qrels == real.qrels
    assert labelled.corpus_hash == real.corpus_hash
    assert not (here / ".labelled.shards").exists()
    again = label(here, "labelled", str(here / "model"), *settings)
    assert again.stdout == done.stdout
    assert "already done" in again.stderr
    other = label(here, "labelled", str(here / "model"), *settings, "sampling.seed=1")
    assert_refused(other, 2, "holds other labels")


def check(here: Path, model: str, grade: Callable[[list[tuple[str, str]]], Sequence[float]]) -> None:
    """Label twice, the second time at a threshold that separates what ``grade`` gives to the pairs."""
    successful(label(here, "all", model, "thresholds=[0.000001]"))
    labelled = load_collection(f"path:{here / 'all'}", "train")
    asked = replace(labelled, queries={key: labelled.queries[key] for key in labelled.qrels})
    run = bm25_run(asked, 10, TrainingLabelConfig(collection="any").bm25)
    keys = [(query, document) for query, scores in run.items() for document in scores]
    texts = [(labelled.queries[query], labelled.corpus[document].full_text) for query, document in keys]
    expected = dict(zip(keys, grade(texts), strict=True))
    middle = statistics.median(expected.values()) + 1e-5
    successful(label(here, "labelled", model, f"thresholds=[{middle}]"))
    found = load_collection(f"path:{here / 'labelled'}", "train").qrels
    graded = {(query, document) for query, grades in found.items() for document, one in grades.items() if one == 1}
    assert graded == {pair for pair, value in expected.items() if value >= middle}
    assert 0 < len(graded) < len(expected), "a threshold that separates"


def test_labels_keep_language_exclusions_and_the_level_of_real_judgments(tmp_path: Path) -> None:
    documents, queries = [("d1", Document("", "eins")), ("d2", Document("", "zwei"))], {"q1": "a b", "q2": "c d"}
    whole = assemble(
        "c", "test", documents, queries.items(), {"q1": {"d1": 2}}, relevance_level=2, language="de",
        excluded={"q2": ["d2"]},
    )  # fmt: skip
    _write_labels(
        tmp_path / "made", replace(whole, queries={"q2": "c d"}), {"q2": {"d1": 1}}, whole, _LabelsMade(fingerprint="x")
    )
    train, test = (load_collection(f"path:{tmp_path / 'made'}", split) for split in ("train", "test"))
    assert (train.language, train.excluded) == ("de", {"q2": frozenset({"d2"})})
    assert (train.relevance_level, test.relevance_level) == (1, 2)


def test_a_causal_model_grades_by_its_probability_of_yes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "choose_dtype", lambda *_, **__: torch.float32)
    config = ModelConfig(base=str(here / "model"), max_length=256, dtype="float32")
    model = unimoe.load_model(config, prompt=PromptConfig(template="qwen3"), device="cpu")
    check(here, str(here / "model"), lambda pairs: model.rerank(pairs).tolist())


def test_a_cross_encoder_grades_by_the_sigmoid_of_its_logit_and_a_function_by_what_it_returns(here: Path) -> None:
    theirs, module = CrossEncoder("ce", device="cpu", activation_fn=torch.nn.Sigmoid()), os.environ["MODULE"]
    check(here, "cross-encoder:ce", lambda pairs: theirs.predict(pairs).tolist())
    for labels in ("all", "labelled"):
        shutil.rmtree(here / labels)
    check(here, f"python:{module}:stated", lambda pairs: importlib.import_module(module).overlap(pairs))
    asked = [len(queries) for queries in importlib.import_module(module).calls]
    assert sorted(asked) == [1] * 12 + [6], "six queries twice, one at a time, and all of them by this test"
    assert "already done" in label(here, "all", f"python:{module}:stated", "thresholds=[0.000001]").stderr
    # Without an identity it is never taken for what is there.
    for code in (0, 2):
        done = label(here, "unknown", f"python:{module}:overlap", "thresholds=[0.000001]")
        assert done.returncode == code
    assert_refused(done, 2, "holds other labels", "--output-dir")


def test_what_cannot_be_labelled_is_refused_in_one_line(here: Path) -> None:
    module = os.environ["MODULE"]
    test_too = label(here, "x", f"python:{module}:stated", "split=train", "test_split=train")
    assert_refused(test_too, 3, "is to be labelled and in test_split too; label another split")
    assert module not in sys.modules, "before anything is graded"
    for model, threshold, code, *words in (
        ("encoder:encoder", 0.5, 2, "encoder:encoder: embeds and does not rerank"),
        ("cross-encodr:ce", 0.5, 2, "did you mean 'cross-encoder'?"),
        (f"python:{module}:counted", 0.5, 3, "query '", "counted returned ", "from 0 to 1"),
        ("model", 2.0, 2, "at most 1"),
    ):
        assert_refused(label(here, "x", model, f"thresholds=[{threshold}]"), code, *words)
    assert not (here / "x").exists()


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
    assert np.allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    assert np.allclose(ours.encode(texts, kind="query"), theirs.encode_query(texts), atol=1e-5)
    with torch.no_grad():
        trainer.model.eval()
        assert np.allclose(ours.encode(texts), trainer.model(ours.token_ids(texts)).numpy(), atol=1e-5)
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
    (tmp_path / "empty").mkdir()
    trainer = toy_training(tmp_path, epochs=1)
    trainer.fit()
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"out_dim": 65}, r"out_dim 65 is above the 64 dimensions of"),
        ({"frozen_layers": 2}, r"frozen_layers 2: .* has 2 layers"),
        ({"encoder": {"base": str(tmp_path / "empty")}}, "no config.json; give"),
        ({"encoder": {"base": str(trainer.last_dir)}}, "is of Transformer, Pooling, Dense, Normalize; train"),
        ({"relevance_threshold": 3}, "has a positive in the corpus"),
    )
    for keys, words in refused:
        with pytest.raises((UsageError, DataError), match=words):
            toy_training(tmp_path, **keys)
    weight = trainer.last_dir / "2_Dense" / "model.safetensors"
    weight.write_bytes(weight.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match="safetensors: differs from the manifest"):
        toy_training(tmp_path, epochs=1).fit()


def train(folder: Path, *more: str) -> Done:
    keys = toy_keys(folder)
    settings = [f"{key}={json.dumps(value)}" for key, value in keys.items() if key != "output_dir"]
    given = ("--device", "cpu", "--output-dir", keys["output_dir"])
    return call_unimoe("train-biencoder", *given, *(part for text in settings for part in ("--set", text)), *more)


def test_seeds_are_compared_with_the_encoder_before_in_one_folder(tmp_path: Path) -> None:
    first = successful(train(tmp_path, "--seed", "0"))
    said = " ".join(first.stdout.split())
    assert "biencoder (after) against encoder (before), 18 queries" in said
    assert "biencoder+bm25 (after) against encoder+bm25 (before), 18 queries" in said
    assert "biencoder+bm25 (after) against encoder (before)" not in said, "a fusion gains over a fusion"
    gains, against = said.split("Scores of baseline and system")
    assert "biencoder+bm25 against bm25, 18 queries" in against
    for table, pairs in ((gains, 2), (against, 2)):  # each family has the tests of its own question
        (tests,) = re.findall(r"corrected by Holm for all (\d+) tests", table)
        assert int(tests) <= 8 * pairs
    second = successful(train(tmp_path, "--seed", "1"))
    name = result_name(toy_keys(tmp_path)["collection"])
    found = read_result(result_path(tmp_path / "out", "biencoder", 1, "retrieval", name))
    assert found.identity.checkpoint == "best"
    assert found.training is not None
    assert found.training.embedding_examples > 0
    again = train(tmp_path, "--seed", "1")
    assert again.stdout == second.stdout
    assert again.stderr.count("already done") == 7


def test_seeds_that_keep_the_untrained_encoder_are_reported_with_a_caveat(tmp_path: Path) -> None:
    keys = ("learning_rate=1e-30", "freeze_base=false", "out_dim=null", "epochs=1")
    still = [part for key in keys for part in ("--set", key)]
    for seed in ("0", "1"):
        done = successful(train(tmp_path, "--seed", seed, *still))
        assert "(epoch 0)" in done.stderr
        gains = " ".join(done.stdout.split()).split("Scores of baseline and system")[0]
        assert gains.count(" 0.00 ") == 16, "training that moved nothing has gained nothing, alone or fused"
    assert "biencoder seed 0, biencoder seed 1 are one checkpoint" in " ".join(done.stdout.split())


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for option, value, *words in (
        ("--set", "learning_rate=0.0", "learning_rate", "above 0"),
        ("--set", "margin=0.1", "margin", "unknown key"),
        ("--set", "splits.train=nowhere", "no split 'nowhere'"),
        ("--dataset", "scifcat", "did you mean 'scifact'"),
    ):
        assert_refused(train(tmp_path, option, value), 2, *words)
