"""What changes from epoch to epoch: batches, temperature, the part of the queue in use, the trained parameters."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from unimoe.studies.translator.config import BankConfig, SamplerConfig, TemperatureConfig, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import Rows
from unimoe.studies.translator.models.networks import NetworkTranslator


def temperature_of(config: TemperatureConfig, epoch: int, epochs: int) -> float:
    """Return the temperature of an epoch counted from 0: fixed, or along half a cosine wave from start to end."""
    if config.fixed is not None:
        return config.fixed
    passed = epoch / max(1, epochs - 1)
    return config.end + (config.start - config.end) * 0.5 * (1.0 + math.cos(math.pi * passed))


def recent_of(config: BankConfig, epoch: int) -> int:
    """Return how many images of the queue an epoch counted from 0 uses; none in the warm-up."""
    after = epoch - config.warmup_epochs
    return 0 if after < 0 else config.recent[min(after, len(config.recent) - 1)]


def make_optimizer(network: NetworkTranslator, config: TranslatorConfig) -> torch.optim.AdamW:
    """Return AdamW over the layers that start from random weights; biases have no decay."""
    weights = [parameter for parameter in network.layers.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in network.layers.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def unfreeze(base: nn.Linear, optimizer: torch.optim.Optimizer, config: TranslatorConfig) -> None:
    """Let an optimizer train the closed form as well, at its own learning rate.

    Without decay, which would pull the closed form towards zero.
    """
    chosen = [base.weight] if config.geometry.freeze_bias else [base.weight, base.bias]
    for parameter in chosen:
        parameter.requires_grad_(True)
    rate = config.learning_rate * config.geometry.lr_scale
    optimizer.add_param_group({"params": chosen, "lr": rate, "weight_decay": 0.0})


def epoch_batches(config: SamplerConfig, image_of: Rows, seed: int, epoch: int) -> list[Rows]:
    """Return the rows of captions of each batch of an epoch, which depend on seed and epoch alone.

    Shuffled batches hold every caption once. Batches by image pass over all images as often as it takes to see every
    caption once on average; on each pass an image gives its next K captions, or all where it has fewer. A last batch of
    one caption, which has no negative, is left out.
    """
    rng = np.random.default_rng([seed, epoch, 0x7A])
    if config.by_image:
        batches = _by_image(config, image_of, rng)
    else:
        order = rng.permutation(len(image_of))
        batches = [order[begin : begin + config.batch] for begin in range(0, len(order), config.batch)]
    return [batch for batch in batches if len(batch) > 1] or batches


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
