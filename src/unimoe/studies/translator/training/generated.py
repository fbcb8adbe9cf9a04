"""Pairs with a known map, to see what a translator recovers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.data.caption_pairs import CaptionPairs


def generated_pairs(
    images: int = 1000,
    per_image: int = 5,
    dims: tuple[int, int] = (64, 96),
    noise: float = 1.0,
    curvature: float = 0.0,
    seed: int = 0,
) -> tuple[CaptionPairs, NDArray[np.float64]]:
    """Captions that are noisy views of what their image shows, and images that are a map of it.

    What an image shows is a vector of ``Dx`` independent normal numbers ``z`` with scales from 1 down to .1. The image
    is ``A z`` plus ``curvature`` times a random quadratic map of ``z`` of the same spread; a caption is ``z``
    with noise.

    Args:
        images: how many.
        per_image: captions of each.
        dims: of captions and of images, ``(Dx, Dy)``.
        noise: standard deviation of a caption's noise over that of ``z``, the same in every direction.
        curvature: 0 for a linear map, which a closed form can recover.
        seed: of everything.

    Returns:
        The pairs, and the map ``A``, ``(Dy, Dx)``.
    """
    inputs, outputs = dims
    rng = np.random.default_rng(seed)
    scales = np.geomspace(1.0, 0.1, inputs)
    shown = rng.standard_normal((images, inputs)) * scales
    matrix = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
    vectors = shown @ matrix.T
    if curvature:
        squares = (shown @ rng.standard_normal((inputs, outputs))) * (shown @ rng.standard_normal((inputs, outputs)))
        vectors += curvature * vectors.std() / squares.std() * squares
    image_of = np.repeat(np.arange(images), per_image)
    captions = shown[image_of] + noise * scales * rng.standard_normal((len(image_of), inputs))
    pairs = CaptionPairs(
        captions=captions.astype(np.float32),
        caption_ids=[f"g{image:05}#{number}" for image in range(images) for number in range(per_image)],
        images=vectors.astype(np.float32),
        image_ids=[f"g{image:05}" for image in range(images)],
        image_of=image_of,
    )
    return pairs, matrix
