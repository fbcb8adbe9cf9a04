"""Tiny trainings of encoders, of seconds, and studies of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from support.heads import topics_folder
from support.tiny_encoders import save_tiny_encoder

from unimoe.config.files import parse_config
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.trainer import BiEncoderTrainer
from unimoe.studies.common.study import load_study
from unimoe.studies.cross_encoder.config import CrossEncoderConfig


def cross_encoder_keys(encoder: Path, topics: Path) -> dict[str, Any]:
    """Steps of four lists, an evaluation and a saved state after every second."""
    return {
        "model": {"base": str(encoder), "max_length": 48},
        "loss": {"name": "plistmle", "mini_batch_size": 8},
        "lists": {"source": f"path:{topics}", "max_docs": 4},
        "evaluation": {"depth": 6},
        "batch_size": 4,
        "max_steps": 4,
        "eval_every": 2,
    }


def cross_encoder_config(encoder: Path, topics: Path, output_dir: Path, **changes: Any) -> CrossEncoderConfig:
    """Six of these steps."""
    own = {"output_dir": str(output_dir), "max_steps": 6, "learning_rate": 1e-3, "seed": 3}
    return parse_config(CrossEncoderConfig, cross_encoder_keys(encoder, topics) | own | changes, source="test")


def loss_study(folder: Path, **changes: Any) -> Path:
    """Write a study of two losses at two rates."""
    topics = folder / "topics"
    if not topics.exists():
        save_tiny_encoder(folder / "encoder")
        topics_folder(topics, {"train": 24, "dev": 6, "test": 12})
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "cross_encoder",
        "output_dir": str(folder / "out"),
        "base": cross_encoder_keys(folder / "encoder", topics),
        "arms": {"softmax": {"set": {"loss.name": "softmax"}}, "listnet": {"set": {"loss.name": "listnet"}}},
        "grid": {"learning_rate": [1e-5, 1e-3]},
        "seeds": 2,
        "baselines": ["bm25", "softmax"],
    }
    file = folder / "study.yaml"
    file.write_text(json.dumps(raw | changes), encoding="utf-8")
    return file


def encoder_study(folder: Path, base: dict[str, Any], variants: dict[str, Any]) -> Path:
    """Write the shipped study of bi-encoders with other settings, on the collection of ``base``."""
    shipped = load_study(Path("studies/biencoder")).model_dump(mode="json", exclude={"config"})
    base = {key: value for key, value in base.items() if key != "output_dir"}
    file = folder / "study.yaml"
    file.write_text(json.dumps(shipped | {"base": base, "arms": {"biencoder": {"variants": variants}}}))
    return file


def toy_keys(folder: Path) -> dict[str, Any]:
    """A collection and a random encoder below a folder, made where they are missing, and a training on them."""
    collection, encoder = folder / "collection", folder / "encoder"
    if not collection.exists():
        topics_folder(collection)
        save_tiny_encoder(encoder)
    return {
        "collection": f"path:{collection}",
        "encoder": {"base": str(encoder)},
        "out_dim": 16,
        "query_length": 16,
        "document_length": 24,
        "batch_size": 8,
        "epochs": 2,
        "learning_rate": 1e-3,
        "precision": "float32",
        "output_dir": str(folder / "out"),
    }


def toy_training(folder: Path, **changes: Any) -> BiEncoderTrainer:
    """``toy_keys`` with other keys, ready to ``fit``."""
    config = BiEncoderConfig.model_validate(toy_keys(folder) | changes)
    return BiEncoderTrainer(config, torch.device("cpu"))
