"""Generated captions and images: noise on both sides of a few shared dimensions, or the arrays of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs


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


def seed_arrays(images: int = 4, each: int = 2, dims: tuple[int, int] = (6, 5)) -> dict[str, NDArray[Any]]:
    """A file in the original's layout, with one-hot labels."""
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


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    """Write arrays whose names may have slashes."""
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
