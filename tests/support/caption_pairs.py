"""Generated captions and images, the files that hold them, and tiny trainings of translators on them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs, split_by_image
from unimoe.studies.translator.data.sources import generated_pairs


def pairs_of(captions: NDArray[Any], images: NDArray[Any], image_of: NDArray[Any]) -> CaptionPairs:
    """Pairs with ids by number."""
    caption_ids = [f"c{row:05d}" for row in range(len(captions))]
    image_ids = [f"i{row:05d}" for row in range(len(images))]
    named = [image_ids[row] for row in image_of]
    return build_pairs(captions, caption_ids, named, images, image_ids, source="generated")


def latent_pairs(
    images: int = 300, each: int = 5, dims: tuple[int, int] = (24, 32), latent: int = 8, noise: float = 0.5
) -> CaptionPairs:
    """Captions and images that share a few latent dimensions, with noise of their own and means far from zero."""
    rng = np.random.default_rng(0)
    wide, tall = dims
    meaning = rng.standard_normal((images, latent))
    image_of = np.repeat(np.arange(images), each)
    captions = meaning[image_of] @ rng.standard_normal((latent, wide))
    captions += noise * latent**0.5 * rng.standard_normal(captions.shape) + rng.standard_normal(wide)
    targets = meaning @ rng.standard_normal((latent, tall))
    targets += noise * latent**0.5 * rng.standard_normal(targets.shape) + 3 * rng.standard_normal(tall)
    return pairs_of(captions, targets, image_of)


def seed_arrays() -> dict[str, NDArray[Any]]:
    """Four images with two captions each as a file in the original's layout, with one-hot labels."""
    rng = np.random.default_rng(0)
    return {
        "captions/embeddings": rng.standard_normal((8, 6)).astype(np.float32),
        "captions/ids": np.array([str(row) for row in range(8)]),
        "captions/label": np.eye(4, dtype=bool)[np.repeat(np.arange(4), 2)],
        "images/embeddings": rng.standard_normal((4, 5)).astype(np.float32),
        "images/names": np.array([f"Images/photo{row}.jpg" for row in range(4)]),
        "metadata/embedding_dim_text": np.array([6]),
        "metadata/embedding_dim_image": np.array([5]),
    }


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any] | None]) -> Path:
    """Write arrays whose names may have slashes, without those that are None."""
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return path


def write_npz(path: Path, pairs: CaptionPairs, **changes: Any) -> Path:
    """Write pairs in the plain layout; a change of None leaves a key out."""
    arrays = {
        "captions": pairs.captions,
        "caption_ids": np.array(pairs.caption_ids),
        "caption_image": np.array([pairs.image_ids[row] for row in pairs.image_of]),
        "images": pairs.images,
        "image_ids": np.array(pairs.image_ids),
    }
    return write_arrays(path, arrays | changes)


def small_pairs(images: int = 60, seed: int = 0) -> CaptionPairs:
    """Three captions of each image, 12 to 16 dimensions."""
    return generated_pairs(images, 3, dims=(12, 16), noise=0.3, curvature=1.0, seed=seed)[0]


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


def read_submission(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """The ids and embeddings of a submission, as a scoreboard reads them."""
    csv.field_size_limit(2**24)
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert header == ["id", "embedding"]
    return [key for key, _ in rows], np.array([json.loads(vector) for _, vector in rows])
