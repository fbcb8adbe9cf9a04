"""Trainings of a tiny bi-encoder, of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.heads import topics_folder
from support.tiny_encoders import save_tiny_encoder

from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.trainer import BiEncoderTrainer


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
