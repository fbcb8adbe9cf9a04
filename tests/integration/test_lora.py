"""LoRA on bi- and cross-encoders: what trains, and that our door and the library load what is saved and score alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from support.scripts import Done, assert_refused, call_unimoe, read_plain, successful, write_plain
from support.studies import cross_encoder_config, cross_encoder_keys, topics_folder, toy_keys, toy_training
from support.tiny_models import load, save_tiny_encoder

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.trec import Run
from unimoe.formats.runs import read_run
from unimoe.models.folder import find_folder
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.results import run_path
from unimoe.studies.biencoder.trainer import BiEncoderTrainer
from unimoe.studies.cross_encoder.data import load_cross_encoder_data
from unimoe.studies.cross_encoder.trainer import CrossEncoderTraining

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

TEXTS = ["topic1 all noise3", "a much longer text " * 20, "topic7"]
CPU = torch.device("cpu")
LORA = {"rank": 4, "dropout": 0.1}


def assert_run(found: Run, expected: Run) -> None:
    """Scores of the same documents are the same to 1e-6; both runs hold as many."""
    assert found.keys() == expected.keys()
    for query, scores in found.items():
        assert scores == pytest.approx(expected[query], abs=1e-6)


def moved(base: Any, trained: Any) -> set[str]:
    """Names of weights of a base that are others in a model with adapters."""
    theirs = {name.replace(".base_layer", "").replace(".original_module", ""): weight for name, weight in trained}
    assert theirs.keys() >= {name for name, _ in base}
    return {name for name, weight in base if not torch.equal(theirs[name], weight)}


def train_biencoder(folder: Path, *more: str, **changes: Any) -> Done:
    write_plain(folder / "biencoder.yaml", toy_keys(folder) | {"lora": LORA} | changes)
    settings = [part for text in more for part in ("--set", text)]
    return call_unimoe("train-biencoder", "--config", folder / "biencoder.yaml", "--device", "cpu", *settings)


def train_cross_encoder(folder: Path, *more: str, encoder: str = "bert", **changes: Any) -> Done:
    if not (folder / "topics").exists():
        topics_folder(folder / "topics", {"train": 24, "dev": 6, "test": 6})
    keys = cross_encoder_keys(folder / encoder, folder / "topics")
    write_plain(folder / "cross.yaml", keys | {"lora": LORA, "output_dir": str(folder / "out")} | changes)
    settings = [part for text in more for part in ("--set", text)]
    return call_unimoe("train-cross-encoder", "--config", folder / "cross.yaml", "--device", "cpu", *settings)


@pytest.mark.parametrize("out_dim", [16, None])
def test_a_bi_encoder_of_adapters_is_searched_with_by_its_folder_as_in_its_training(
    tmp_path: Path, out_dim: int | None
) -> None:
    exact = {"base": str(tmp_path / "encoder"), "dtype": "float32"}
    successful(train_biencoder(tmp_path, out_dim=out_dim, learning_rate=1e-2, encoder=exact))
    arm, name = tmp_path / "out" / "biencoder" / "seed_0", toy_keys(tmp_path)["collection"]
    best = arm / "checkpoint-best"
    assert json.loads((best / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "encoder"
    )
    assert not (best / "model.safetensors").exists()
    assert all(".lora_" in key for key in load_file(best / "adapter_model.safetensors"))
    lengths = ("retrieval.query_length=16", "retrieval.document_length=24", "retrieval.depth=100")
    settings = [part for text in (*lengths, "encoder.dtype=float32") for part in ("--set", text)]
    search = ("retrieve", "--encoder", best, "--dataset", name, "--output-dir", tmp_path / "again", "--device", "cpu")
    successful(call_unimoe(*search, *settings))
    (again,) = (tmp_path / "again").glob("checkpoint-best/*/runs/retrieval/*.trec")
    assert_run(read_run(again), read_run(arm / "runs" / "retrieval" / again.name))
    library: Any = SentenceTransformer(str(best), device="cpu")
    bare: Any = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    assert np.allclose(load(best).encode(TEXTS), library.encode(TEXTS), atol=1e-6)
    assert library[0].max_seq_length == 24
    assert not moved([*bare[0].model.named_parameters()], [*library[0].model.named_parameters()])
    assert "LoRA of rank 4" in (best / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("auto", "kind", "settings"),
    [
        ("AutoModelForMaskedLM", "bert", {}),  # without a pooler, which is new as the classifier is
        ("AutoModelForSequenceClassification", "bert", {"num_labels": 1}),
        ("AutoModel", "modernbert", {"global_attn_every_n_layers": 1, "cls_token_id": 2, "sep_token_id": 3}),
    ],
)
def test_a_cross_encoder_of_adapters_reranks_by_its_folder_as_in_its_training(
    tmp_path: Path, auto: str, kind: str, settings: dict[str, Any]
) -> None:
    save_tiny_encoder(tmp_path / kind, kind, auto, **settings)
    chosen = {"target_modules": "all-linear"} if kind == "modernbert" else {}
    successful(train_cross_encoder(tmp_path, encoder=kind, lora=LORA | chosen, learning_rate=1e-2))
    folder = tmp_path / "out" / "cross_encoder" / "seed_12" / "checkpoint"
    given = ("--dataset", f"path:{tmp_path / 'topics'}", "--output-dir", tmp_path / "again", "--device", "cpu")
    options = ("evaluation.depth=6", "model.dtype=float32")
    more = [part for text in options for part in ("--set", text)]
    successful(call_unimoe("evaluate", "--model", folder, "--name", "mine", "--task", "reranking", *given, *more))
    found = read_run(run_path(tmp_path / "again", "mine", None, "reranking", "topics"))
    assert_run(found, read_run(run_path(tmp_path / "out", "cross_encoder", 12, "reranking", "topics")))
    assert not (folder / "model.safetensors").exists()
    saved = {key for key in load_file(folder / "adapter_model.safetensors") if ".lora_" not in key}
    library = CrossEncoder(str(folder), device="cpu")
    body = library[0].model.base_model
    heads = {"base_model.model." + name for name, _ in library[0].model.named_parameters() if "modules_to_save" in name}
    assert saved == {name.replace("modules_to_save.default.", "") for name in heads}
    assert any("classifier" in name for name in saved)
    bare: Any = SentenceTransformer(str(tmp_path / kind), device="cpu")
    assert moved([*bare[0].model.named_parameters()], [*body.named_parameters()]) <= {
        f"pooler.dense.{name}" for name in ("weight", "bias")
    }, "a pooler that the base lacks is random there"
    card = (folder / "README.md").read_text("utf-8")
    assert "- lora" in card
    assert "- `lora`: {'rank': 4" in card


def test_the_bundled_encoder_is_found_offline_under_an_adapter_that_names_it_as_the_hub_does(tmp_path: Path) -> None:
    keys = {"encoder": {"base": BUNDLED_ENCODER}, "epochs": 1, "train_queries": 8, "corpus_sample": 54, "lora": LORA}
    trainer = toy_training(tmp_path, **keys, learning_rate=1e-2)
    trainer.fit()
    named = read_plain(trainer.last_dir / "adapter_config.json")["base_model_name_or_path"]
    assert named == "sentence-transformers/all-MiniLM-L6-v2"
    folder = find_folder("encoder.base", str(trainer.last_dir))
    assert folder.base is not None
    assert folder.base.is_bundled
    assert folder.kind == "encoder"
    ours, model = load(trainer.last_dir), trainer.model.eval()
    assert load(trainer.last_dir).base_identity == ours.base_identity != load(BUNDLED_ENCODER).base_identity
    with torch.no_grad():
        assert np.allclose(ours.encode(TEXTS), model(ours.token_ids(TEXTS)).numpy(), atol=1e-6)


def test_a_cross_encoder_on_the_bundled_encoder_is_loaded_offline_too(tmp_path: Path) -> None:
    topics_folder(tmp_path / "topics", {"train": 24, "dev": 6, "test": 6})
    base = {"model": {"base": BUNDLED_ENCODER, "max_length": 48}, "lora": LORA, "max_steps": 1, "learning_rate": 1e-2}
    config = cross_encoder_config(tmp_path, tmp_path / "topics", tmp_path / "out", **base)
    training = CrossEncoderTraining(config, load_cross_encoder_data(config), CPU)
    training.fit()
    pairs = [(TEXTS[0], text) for text in TEXTS]
    found = load_cross_encoder(training.checkpoint_dir, CPU).predict(pairs, show_progress_bar=False)
    library = CrossEncoder(
        str(find_folder("model.base", BUNDLED_ENCODER).root), num_labels=1, max_length=48, device="cpu"
    )
    library.load_adapter(str(training.checkpoint_dir))
    assert found == pytest.approx(library.predict(pairs, show_progress_bar=False), abs=1e-6)
    assert len(set(found.tolist())) == 3


def test_adapters_draw_no_random_number_of_the_rest_and_a_saved_state_holds_what_trains(tmp_path: Path) -> None:
    """First weights, batches and scores before training are those of the training of all weights."""
    one, plain = toy_training(tmp_path, lora=LORA), toy_training(tmp_path)
    assert isinstance(one, BiEncoderTrainer)
    assert one.model.head is not None
    assert plain.model.head is not None
    assert torch.equal(one.model.head.weight, plain.model.head.weight)
    assert one.score_on_dev() == plain.score_on_dev()
    assert one.state.fingerprint != plain.state.fingerprint
    made: list[tuple[CrossEncoderTraining, torch.Tensor]] = []
    for changes in ({"lora": LORA}, {}):
        config = cross_encoder_config(tmp_path / "encoder", tmp_path / "collection", tmp_path / "out", **changes)
        training = CrossEncoderTraining(config, load_cross_encoder_data(config), CPU)
        training.prepare()
        made.append((training, torch.get_rng_state()))
    assert torch.equal(made[0][1], made[1][1])
    assert made[0][0].score_on_dev() == made[1][0].score_on_dev()
    sizes = [sum(one.numel() for one in training.parts()["weights"].values()) for training, _ in made]
    assert sizes[0] < sizes[1] / 10


MAKERS: dict[str, Callable[..., Done]] = {"bi-encoder": train_biencoder, "cross-encoder": train_cross_encoder}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"target_modules": ["query", "vlaue"]}, ("no linear layer 'vlaue'", "did you mean 'value'")),
        ({"target_modules": ["LayerNorm"]}, ("no linear layer 'LayerNorm'", "dense, key, query, value")),
        ({"target_modules": "all"}, ("lora.target_modules", "all-linear")),
        ({"rank": 0}, ("lora.rank", "at least 1")),
        ({"r": 8}, ("lora.r", "unknown key")),
    ],
)
def test_what_cannot_be_adapted_is_one_line(
    kind: str, lora: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    save_tiny_encoder(tmp_path / "bert")
    assert_refused(MAKERS[kind](tmp_path, lora=lora), 2, *words)


def test_ways_to_freeze_exclude_each_other_and_no_adapter_gets_another(tmp_path: Path) -> None:
    save_tiny_encoder(tmp_path / "mpnet", "mpnet")
    both = ("lora freezes the whole base", "leave out")
    assert_refused(train_biencoder(tmp_path, "frozen_layers=1"), 2, *both)
    assert_refused(train_cross_encoder(tmp_path, "model.frozen_layers=1"), 2, *both)
    mpnet = train_cross_encoder(tmp_path, encoder="mpnet")
    assert_refused(mpnet, 2, "PEFT has no choice for mpnet; set it to all-linear")
    successful(train_biencoder(tmp_path, out_dim=None, epochs=1))
    base = tmp_path / "out" / "biencoder" / "seed_0" / "checkpoint"
    again = (f"encoder.base={base}", "out_dim=null", f"output_dir={tmp_path / 'other'}")
    for lora in ("lora=null", "lora={rank: 2}"):
        assert_refused(train_biencoder(tmp_path, *again, lora), 3, "is an adapter; merge it into its base")
    assert_refused(train_cross_encoder(tmp_path, f"model.base={base}"), 3, "is an adapter; merge it into its base")
