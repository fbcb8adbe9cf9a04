"""The batches of an epoch: shuffled captions, or K captions of each of P images. They hang on seed and epoch alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unimoe.studies.translator.config import SamplerConfig

Rows = NDArray[np.int64]


def epoch_batches(config: SamplerConfig, image_of: Rows, seed: int, epoch: int) -> list[Rows]:
    """Rows of captions, a batch each.

    Args:
        config: kind and size of the batches.
        image_of: ``(N,)`` the image of each caption.
        seed: of the training.
        epoch: counted from 0.

    Returns:
        Shuffled batches hold every caption once. Batches by image go over all images as often as it takes to see, on
        average, every caption once; on each visit an image gives its next captions, all of them where it has fewer
        than K. Without a last batch of one caption, which has no negative.
    """
    rng = np.random.default_rng([seed, epoch, 0x7A])
    batches = _by_image(config, image_of, rng) if config.by_image else _shuffled(config.batch, len(image_of), rng)
    return [batch for batch in batches if len(batch) > 1] or batches


def _shuffled(size: int, count: int, rng: np.random.Generator) -> list[Rows]:
    order = rng.permutation(count)
    return [order[begin : begin + size] for begin in range(0, count, size)]


def _by_image(config: SamplerConfig, image_of: Rows, rng: np.random.Generator) -> list[Rows]:
    shuffled = rng.permutation(len(image_of))
    grouped = shuffled[np.argsort(image_of[shuffled], kind="stable")]  # by image, in random order within
    images, begins, counts = np.unique(image_of[grouped], return_index=True, return_counts=True)
    visits = -(-len(image_of) // (len(images) * config.captions))
    batches = []
    for visit in range(visits):
        order = rng.permutation(len(images))
        for begin in range(0, len(order), config.images):
            chosen = order[begin : begin + config.images]
            taken = np.minimum(counts[chosen], config.captions)
            image = np.repeat(chosen, taken)
            nth = np.arange(len(image)) - np.repeat(np.cumsum(taken) - taken, taken)
            place = (visit * config.captions + nth) % counts[image]
            batches.append(grouped[begins[image] + place])
    return batches
