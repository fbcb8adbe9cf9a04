"""One small artefact of each kind that a training writes, by its real writer where that takes no training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unimoe.core.io import hash_file, hash_files, write_sealed
from unimoe.models import bundled
from unimoe.models.checkpoint import ADAPTER_FILE, ADAPTER_SETTINGS, Checkpoint, read_checkpoint, write_manifest
from unimoe.models.rerankers.files import weights_hash
from unimoe.results import TrainingBudget
from unimoe.studies.biencoder.training.checkpoint import BiEncoderManifest, read_biencoder
from unimoe.studies.cross_encoder.training import checkpoint as cross_encoder
from unimoe.studies.heads.model import load_head, save_head
from unimoe.studies.translator.models.files import read_translator, save_translator
from unimoe.training.run_state import RunState

BUDGET = TrainingBudget(steps=10, ranking_examples=80, embedding_examples=0, tokens=1234)

Read = Callable[[], Any]
Make = Callable[[Path], tuple[Path, Read]]
"""Writes an artefact into a folder and returns one file of it, and its reader: None stands for absent."""


@dataclass
class Progress:
    """How far a training is."""

    step: int
    best: torch.Tensor


def state_in(folder: Path) -> RunState[Progress]:
    return RunState(folder, {"seed": 1}, "fingerprint", Progress)


def log_of_a_resumed_training(folder: Path) -> tuple[Path, Read]:
    state = state_in(folder)
    for step in range(1, 9):
        state.log({"step": step, "loss": 1 / step})
    whole = state.log_path.read_bytes()

    def read() -> list[bytes]:
        damaged = state.log_path.read_bytes()
        state.cut_logs(8)
        kept = state.log_path.read_bytes()
        state.log_path.write_bytes(damaged)
        assert whole.startswith(kept)
        return kept.splitlines()

    return state.log_path, read


def state_of_a_training(folder: Path) -> tuple[Path, Read]:
    state = state_in(folder)
    state.save(Progress(3, torch.arange(4.0)), model={"w": torch.tensor([1 / 3, 0.5], dtype=torch.bfloat16)})

    def read() -> Any:
        found = state.load()
        assert found is not None
        progress, parts = found
        return progress.step, progress.best.tolist(), parts["model"]["w"].tolist()

    return state.path, read


def head(folder: Path) -> tuple[Path, Read]:
    path = folder / "head.safetensors"
    save_head(path, torch.arange(6.0).reshape(2, 3) / 7, {"facts": '{"val": 0.25}', "fingerprint": "abc"})

    def read() -> Any:
        weight, texts = load_head(path)
        return weight.tolist(), texts

    return path, read


def checkpoint(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        (folder / ADAPTER_FILE).write_bytes(bytes(range(256)))
        (folder / ADAPTER_SETTINGS).write_text('{"r": 8}', encoding="utf-8")
        manifest = Checkpoint(
            arm="joint_r8",
            seed=1,
            which="last",
            base_model="some/model@abc",
            dtype="bfloat16",
            fingerprint="0123",
            adapter_hash=hash_file(folder / ADAPTER_FILE),
            settings_hash=hash_file(folder / ADAPTER_SETTINGS),
            training=BUDGET,
            config={"name": "toy"},
        )
        write_manifest(folder, manifest)
        return folder / name, lambda: read_checkpoint(folder)

    return make


def written_model(folder: Path) -> None:
    """What libraries write into the folder of a model."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    (folder / "config.json").write_text('{"hidden_size": 32, "layer_norm_eps": 1e-12}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))


def biencoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        from unimoe.studies.biencoder.training.checkpoint import MANIFEST, _weights_hash

        written_model(folder)
        manifest = BiEncoderManifest(
            arm="biencoder",
            seed=0,
            which="best",
            base_model="some/model@abc",
            dtype="float32",
            fingerprint="0123",
            weights_hash=_weights_hash(folder),
            files=hash_files(folder),
            facts={"val": 0.5},
            training=BUDGET,
            config={},
        )
        write_sealed(folder / MANIFEST, manifest.model_dump())
        return folder / name, lambda: read_biencoder(folder)

    return make


def trained_cross_encoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        written_model(folder)
        manifest = cross_encoder.CrossEncoderManifest(
            arm="softmax",
            seed=0,
            which="best",
            base_model="some/model@abc",
            fingerprint="0123",
            weights_hash=weights_hash(folder),
            files=hash_files(folder),
            dev=0.5,
            training=BUDGET,
            seconds=1.5,
            config={},
        )
        cross_encoder.write_manifest(folder, manifest)
        return folder / name, lambda: cross_encoder.read_manifest(folder)

    return make


def state_of_a_cross_encoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        files = {"trainer_state.json": b'{"global_step": 8}', "optimizer.pt": bytes(range(256))}

        def written(step: int) -> Path:
            state = folder / f"checkpoint-{step}"
            state.mkdir(exist_ok=True)
            for file, content in files.items():
                (state / file).write_bytes(content)
            cross_encoder.seal_state(state, 0.0)
            return state

        written(4)
        newest = written(8)
        return newest / name, lambda: cross_encoder.last_state(folder)

    return make


def translator(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        save_translator(folder / "ridge", "ridge", {"matrix": np.arange(6.0).reshape(2, 3)}, {"ridge": 0.1}, ("note",))

        def read() -> Any:
            found = read_translator(folder / "ridge")
            return found.kind, found.settings, found.notes, found.tensors["matrix"].tolist()

        return folder / "ridge" / name, read

    return make


def prepared_model(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        written_model(folder)
        bundled._write_manifest(folder)
        return folder / name, lambda: bundled._is_whole(folder) or None

    return make


OF_TRAININGS: dict[str, Make] = {
    "log of a resumed training": log_of_a_resumed_training,
    "state": state_of_a_training,
    "head": head,
    "adapter": checkpoint(ADAPTER_FILE),
    "adapter's settings": checkpoint(ADAPTER_SETTINGS),
    "adapter's manifest": checkpoint("unimoe.json"),
    "bi-encoder": biencoder("model.safetensors"),
    "bi-encoder's settings": biencoder("1_Pooling/config.json"),
    "bi-encoder's manifest": biencoder("unimoe.json"),
    "cross-encoder": trained_cross_encoder("model.safetensors"),
    "cross-encoder's settings": trained_cross_encoder("config.json"),
    "cross-encoder's manifest": trained_cross_encoder("unimoe.json"),
    "state of a cross-encoder": state_of_a_cross_encoder("optimizer.pt"),
    "progress of a cross-encoder": state_of_a_cross_encoder("trainer_state.json"),
    "hashes of a cross-encoder's state": state_of_a_cross_encoder("unimoe.json"),
    "translator": translator("translator.safetensors"),
    "translator's manifest": translator("translator.json"),
    "prepared model": prepared_model("model.safetensors"),
    "prepared model's tokenizer": prepared_model("config.json"),
    "prepared model's manifest": prepared_model("unimoe.json"),
}
