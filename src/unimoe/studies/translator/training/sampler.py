"""The batches of an epoch: shuffled captions, or K captions of each of P images. They depend on seed and epoch only."""

from __future__ import annotations

import numpy as np

from unimoe.studies.translator.config import SamplerConfig
from unimoe.studies.translator.data.caption_pairs import Rows


def epoch_batches(config: SamplerConfig, image_of: Rows, seed: int, epoch: int) -> list[Rows]:
    """Return the rows of captions of each batch of an epoch counted from 0.

    Shuffled batches hold every caption once. Batches by image pass over all images as often as it takes to see every
    caption once on average; on each pass an image gives its next K captions, or all where it has fewer. A last batch of
    one caption, which has no negative, is left out.

    Args:
        config: kind and size of the batches.
        image_of: ``(N,)`` the image of each caption.
        seed: of the training.
        epoch: counted from 0.
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
    passes = -(-len(image_of) // (len(images) * config.captions))
    batches = []
    for number in range(passes):
        order = rng.permutation(len(images))
        for begin in range(0, len(order), config.images):
            chosen = order[begin : begin + config.images]
            taken = np.minimum(counts[chosen], config.captions)
            image = np.repeat(chosen, taken)
            nth = np.arange(len(image)) - np.repeat(np.cumsum(taken) - taken, taken)
            place = (number * config.captions + nth) % counts[image]
            batches.append(grouped[begins[image] + place])
    return batches
