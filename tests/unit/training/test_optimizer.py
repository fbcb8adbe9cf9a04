"""Schedules and AdamW on float32 masters, against torch and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import get_scheduler

from unimoe.config.training import Schedule
from unimoe.training.optimizer import MasterAdamW, learning_rate_at


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: 3 * torch.randn(shape, generator=generator) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def take(optimizer: MasterAdamW, weights: dict[str, nn.Parameter], steps: int) -> None:
    for step in range(steps):
        for name, gradient in gradients(step).items():
            weights[name].grad = gradient.to(weights[name].dtype)
        optimizer.step(1e-2 / (step + 1), max_grad_norm=1.0)


def rates_of(scheduler: Any) -> list[float]:
    rates = []
    for _ in range(20):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_decays_are_those_of_transformers(schedule: Schedule, warmup: int) -> None:
    adamw = torch.optim.AdamW(parameters().values(), lr=2.0)
    expected = rates_of(get_scheduler(schedule, adamw, num_warmup_steps=warmup, num_training_steps=20))
    rates = [learning_rate_at(step, 20, warmup, 2.0, schedule) for step in range(20)]
    assert rates[warmup:] == pytest.approx(expected[warmup:])


@pytest.mark.parametrize("warmup", [0, 3, 10])
def test_onecycle_is_torchs(warmup: int) -> None:
    adamw = torch.optim.AdamW(parameters().values())
    expected = rates_of(torch.optim.lr_scheduler.OneCycleLR(adamw, max_lr=2.0, total_steps=20, pct_start=warmup / 20))
    assert [learning_rate_at(step, 20, warmup, 2.0, "onecycle") for step in range(20)] == pytest.approx(expected)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_equals_torchs_adamw_to_the_bit(weight_decay: float) -> None:
    ours, theirs = parameters(), parameters()
    adamw = torch.optim.AdamW(theirs.values(), lr=0.0, weight_decay=weight_decay)
    take(MasterAdamW(ours, weight_decay), ours, 5)
    for step in range(5):
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient
        nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        adamw.param_groups[0]["lr"] = 1e-2 / (step + 1)
        adamw.step()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(ours["a"], parameters()["a"])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    weights = parameters()
    optimizer = MasterAdamW(weights, 0.1)
    take(optimizer, weights, 2)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    weights["a"].grad = torch.full((3, 4), bad)
    assert not torch.tensor(optimizer.step(0.1, 1.0)).isfinite()
    assert all(torch.equal(weights[name], state[f"master.{name}"]) for name in weights)
    assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state().items())


def test_weights_in_bfloat16_are_the_rounded_masters() -> None:
    weights = parameters(torch.bfloat16)
    optimizer = MasterAdamW(weights, 0.0)
    take(optimizer, weights, 3)
    for name, master in optimizer.masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(weights[name], master.bfloat16())
        assert not torch.equal(master, master.bfloat16().float())
