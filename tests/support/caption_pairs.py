"""Generated captions and images: through a known map, with noise on both sides, or as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs

Doubles = NDArray[np.float64]


def pairs_of(captions: NDArray[Any], images: NDArray[Any], image_of: NDArray[Any]) -> CaptionPairs:
    """Pairs with ids by number."""
    return build_pairs(
        captions,
        [f"c{row:05d}" for row in range(len(captions))],
        [f"i{row:05d}" for row in image_of.tolist()],
        images,
        [f"i{row:05d}" for row in range(len(images))],
        source="generated",
    )


def latent_pairs(
    images: int = 300,
    each: int = 5,
    dims: tuple[int, int] = (24, 32),
    latent: int = 8,
    noise: float = 0.5,
    seed: int = 0,
) -> CaptionPairs:
    """Captions and images that share a few latent dimensions, with noise of their own and means far from zero."""
    rng = np.random.default_rng(seed)
    wide, tall = dims
    meaning = rng.standard_normal((images, latent))
    image_of = np.repeat(np.arange(images), each)
    captions = meaning[image_of] @ rng.standard_normal((latent, wide))
    captions += noise * latent**0.5 * rng.standard_normal(captions.shape) + rng.standard_normal(wide)
    targets = meaning @ rng.standard_normal((latent, tall))
    targets += noise * latent**0.5 * rng.standard_normal(targets.shape) + 3 * rng.standard_normal(tall)
    return pairs_of(captions, targets, image_of)


def linear_pairs(
    images: int = 200, each: int = 3, dims: tuple[int, int] = (12, 20), seed: int = 0
) -> tuple[CaptionPairs, Doubles, Doubles]:
    """Captions of an image are all the same, and ``y = weight x + bias`` without noise."""
    rng = np.random.default_rng(seed)
    wide, tall = dims
    weight, bias = rng.standard_normal((tall, wide)), rng.standard_normal(tall)
    meaning = rng.standard_normal((images, wide)).astype(np.float32).astype(np.float64)
    image_of = np.repeat(np.arange(images), each)
    return pairs_of(meaning[image_of], meaning @ weight.T + bias, image_of), weight, bias


def seed_arrays(images: int = 4, each: int = 2, dims: tuple[int, int] = (6, 5)) -> dict[str, NDArray[Any]]:
    """A file in the seed's layout, with one-hot labels."""
    rng = np.random.default_rng(0)
    captions = images * each
    image_of = np.repeat(np.arange(images), each)
    return {
        "captions/embeddings": rng.standard_normal((captions, dims[0])).astype(np.float32),
        "captions/ids": np.array([str(row) for row in range(captions)]),
        "captions/label": np.eye(images, dtype=bool)[image_of],
        "images/embeddings": rng.standard_normal((images, dims[1])).astype(np.float32),
        "images/names": np.array([f"Images/photo{row}.jpg" for row in range(images)]),
        "metadata/embedding_dim_text": np.array([dims[0]]),
        "metadata/embedding_dim_image": np.array([dims[1]]),
    }


def plain_arrays(images: int = 4, each: int = 2, dims: tuple[int, int] = (6, 5)) -> dict[str, NDArray[Any]]:
    """The same captions and images in the plain layout."""
    given = seed_arrays(images, each, dims)
    return {
        "captions": given["captions/embeddings"],
        "caption_ids": given["captions/ids"],
        "caption_image": np.repeat(given["images/names"], each),
        "images": given["images/embeddings"],
        "image_ids": given["images/names"],
    }


def write_npz(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    """Write arrays whose names may have slashes."""
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
