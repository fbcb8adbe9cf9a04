"""Small pairs that a translator can learn in seconds, and files of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.data.sources import generated_pairs


def small_pairs(images: int = 60, seed: int = 0, curvature: float = 1.0) -> CaptionPairs:
    """Three captions of each image, 12 to 16 dimensions."""
    return generated_pairs(images, 3, dims=(12, 16), noise=0.3, curvature=curvature, seed=seed)[0]


def small_split() -> tuple[CaptionPairs, CaptionPairs]:
    """45 images to train on, 15 to choose by."""
    return split_by_image(small_pairs(), 0.25, 0)


def small_config(folder: Path, **changes: Any) -> TranslatorConfig:
    """A training of less than a second, with every component of the objective at work."""
    settings: dict[str, Any] = {
        "hidden": 16,
        "epochs": 5,
        "learning_rate": 3e-3,
        "device": "cpu",
        "output_dir": str(folder),
        "sampler": {"batch": 16, "by_image": True, "images": 8, "captions": 2},
        "loss": {
            "bank": {"kind": "queue", "queue": 40, "recent": [20, 40], "hardest": 5, "warmup_epochs": 1},
            "positives": {"per_image": 2, "held": 100},
            "predictions": True,
            "cosine": 0.1,
        },
    }
    return TranslatorConfig.model_validate(settings | changes)


def write_npz(path: Path, pairs: CaptionPairs, **changes: Any) -> Path:
    """Pairs as a file in the plain layout; a change of None leaves a key out."""
    arrays: dict[str, Any] = {
        "captions": pairs.captions,
        "caption_ids": np.array(pairs.caption_ids),
        "caption_image": np.array([pairs.image_ids[row] for row in pairs.image_of]),
        "images": pairs.images,
        "image_ids": np.array(pairs.image_ids),
    }
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def read_submission(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """The ids and embeddings of a submission, as a scoreboard reads them."""
    csv.field_size_limit(2**24)
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert header == ["id", "embedding"]
    return [key for key, _ in rows], np.array([json.loads(vector) for _, vector in rows])
