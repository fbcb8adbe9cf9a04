"""A whole experiment at the size of a test: a tiny random model on the real bundled collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from support.tiny_models import save_tiny_model

from unimoe.config import Experiment
from unimoe.config.files import parse_config


def tiny_experiment_dict(folder: Path) -> dict[str, Any]:
    """The plain data of an experiment whose model and outputs live in ``folder``."""
    model = folder / "tiny-model"
    if not model.exists():
        save_tiny_model(model)
    return {
        "name": "tiny",
        "output_dir": str(folder / "outputs"),
        "seeds": [0, 1],
        "model": {"base": str(model), "dtype": "float32", "max_length": 256},
        "prompt": {
            "template": "chat",
            "order": "document_first",
            "instruction": "Judge it.",
            "query_prefix": "",
            "embedding_suffix": "\n",
        },
        "lora": {"first_layer": 2},
        "training": {
            "collection": "apidocs",
            "steps": 6,
            "warmup_steps": 1,
            "save_every": 2,
            "ranking": {"queries": 12, "queries_per_step": 2, "hard_negatives": 1, "random_negatives": 1},
            "embedding": {"queries": 16, "pairs_per_step": 4, "hard_negatives": 1},
        },
        "evaluation": {"bundled": {"queries": 6, "depth": 4, "pool": 40}},
        "arms": {
            "rank_only_r8": {"task": "rank_only", "learning_rate": 1e-2},
            "emb_only_r8": {"task": "emb_only", "learning_rate": 1e-2},
            "joint_r8": {"task": "joint", "learning_rate": 1e-2, "ranking_weight": 0.5},
        },
    }


def tiny_experiment(folder: Path) -> Experiment:
    """An experiment whose model and outputs live in ``folder``."""
    return parse_config(Experiment, tiny_experiment_dict(folder), source="tiny")


def write_tiny_experiment(folder: Path) -> Path:
    """The same as a YAML file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment_dict(folder)), encoding="utf-8")
    return path
