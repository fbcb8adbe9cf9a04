"""Trainings and study files on a toy collection with a tiny encoder: steps of milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.heads import topics_folder
from support.tiny_encoders import save_tiny_encoder

from unimoe.config.files import parse_config
from unimoe.studies.common.study import load_study
from unimoe.studies.cross_encoder.config import CrossEncoderConfig


def cross_encoder_config(encoder: Path, topics: Path, output_dir: Path, **changes: Any) -> CrossEncoderConfig:
    """Six steps of four lists, an evaluation and a saved state after every second."""
    raw: dict[str, Any] = {
        "output_dir": str(output_dir),
        "model": {"base": str(encoder), "max_length": 48},
        "loss": {"name": "plistmle", "mini_batch_size": 8},
        "lists": {"source": f"path:{topics}", "max_docs": 4},
        "evaluation": {"depth": 6},
        "batch_size": 4,
        "max_steps": 6,
        "learning_rate": 1e-3,
        "seed": 3,
        "eval_every": 2,
    }
    return parse_config(CrossEncoderConfig, raw | changes, source="test")


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
        "base": {
            "model": {"base": str(folder / "encoder"), "max_length": 48},
            "loss.mini_batch_size": 8,
            "lists": {"source": f"path:{topics}", "max_docs": 4},
            "evaluation.depth": 6,
            "batch_size": 4,
            "max_steps": 4,
            "eval_every": 2,
        },
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
