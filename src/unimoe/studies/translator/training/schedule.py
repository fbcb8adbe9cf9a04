"""Settings that change from epoch to epoch: temperature, the part of the queue in use, the trained parameters."""

from __future__ import annotations

import math

import torch
from torch import nn

from unimoe.studies.translator.config import BankConfig, GeometryConfig, TemperatureConfig, TranslatorConfig
from unimoe.studies.translator.models.networks import TranslatorNetwork


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


def make_optimizer(network: TranslatorNetwork, config: TranslatorConfig) -> torch.optim.AdamW:
    """Return AdamW over the layers that start from random weights; biases have no decay."""
    layers = dict(network.layers.named_parameters())
    weights = [parameter for name, parameter in layers.items() if name.endswith("weight")]
    biases = [parameter for name, parameter in layers.items() if name.endswith("bias")]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def is_unfrozen(config: GeometryConfig, epoch: int) -> bool:
    """Return whether an epoch counted from 0 trains the closed form."""
    return config.unfreeze_epoch is not None and epoch + 1 >= config.unfreeze_epoch


def unfreeze(base: nn.Linear, optimizer: torch.optim.Optimizer, config: TranslatorConfig) -> None:
    """Let an optimizer train the closed form as well, at its own learning rate.

    Without decay, which would pull the closed form towards zero.
    """
    chosen = [base.weight] if config.geometry.freeze_bias else [base.weight, base.bias]
    for parameter in chosen:
        parameter.requires_grad_(True)
    rate = config.learning_rate * config.geometry.lr_scale
    optimizer.add_param_group({"params": chosen, "lr": rate, "weight_decay": 0.0})
