from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unimoe.cluster.processes import Processes
from unimoe.config.training import Schedule
from unimoe.training.optimizer import MasterAdamW, learning_rate_at, sum_gradients


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: 3 * torch.randn(shape, generator=generator) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def take(optimizer: MasterAdamW, weights: dict[str, nn.Parameter], steps: range, rate: float = 1e-2) -> list[float]:
    norms = []
    for step in steps:
        for name, gradient in gradients(step).items():
            weights[name].grad = gradient.to(weights[name].dtype)
        norms.append(optimizer.step(rate / (step + 1), max_grad_norm=1.0))
    return norms


class TestLearningRate:
    def test_it_warms_up_and_decays_and_never_is_zero(self) -> None:
        rates = [learning_rate_at(step, steps=10, warmup=4, peak=1.0) for step in range(10)]
        assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])

    @pytest.mark.parametrize("schedule", ["linear", "cosine"])
    @pytest.mark.parametrize("warmup", [0, 4])
    def test_decays_are_those_of_transformers(self, schedule: Schedule, warmup: int) -> None:
        from transformers import get_scheduler

        adamw = torch.optim.AdamW(parameters().values(), lr=2.0)
        oracle = get_scheduler(schedule, adamw, num_warmup_steps=warmup, num_training_steps=20)
        expected = []
        for _ in range(20):
            expected.append(oracle.get_last_lr()[0])
            adamw.step()
            oracle.step()
        rates = [learning_rate_at(step, 20, warmup, 2.0, schedule) for step in range(20)]
        assert rates[warmup:] == pytest.approx(expected[warmup:])

    @pytest.mark.parametrize("warmup", [0, 3, 10])
    def test_onecycle_is_torchs(self, warmup: int) -> None:
        adamw = torch.optim.AdamW(parameters().values())
        oracle = torch.optim.lr_scheduler.OneCycleLR(adamw, max_lr=2.0, total_steps=20, pct_start=warmup / 20)
        expected = []
        for _ in range(20):
            expected.append(oracle.get_last_lr()[0])
            adamw.step()
            oracle.step()
        assert [learning_rate_at(step, 20, warmup, 2.0, "onecycle") for step in range(20)] == pytest.approx(expected)

    def test_onecycle_with_one_step_of_warm_up_begins_at_the_peak(self) -> None:
        rates = [learning_rate_at(step, 3, 1, 2.0, "onecycle") for step in range(3)]
        assert rates[0] == 2.0
        assert rates[0] > rates[1] > rates[2] > 0


class TestFloat32:
    @pytest.mark.parametrize("weight_decay", [0.0, 0.1])
    def test_it_equals_torchs_adamw_to_the_bit(self, weight_decay: float) -> None:
        ours, theirs = parameters(), parameters()
        optimizer = MasterAdamW(ours, weight_decay)
        adamw = torch.optim.AdamW(theirs.values(), lr=0.0, weight_decay=weight_decay)
        take(optimizer, ours, range(5))
        for step in range(5):
            for name, gradient in gradients(step).items():
                theirs[name].grad = gradient
            nn.utils.clip_grad_norm_(theirs.values(), 1.0)
            adamw.param_groups[0]["lr"] = 1e-2 / (step + 1)
            adamw.step()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert not torch.equal(ours["a"], parameters()["a"])

    def test_it_returns_the_norm_before_clipping_and_clears_the_gradients(self) -> None:
        weights = parameters()
        (norm,) = take(MasterAdamW(weights, 0.0), weights, range(1))
        expected = torch.cat([gradient.flatten() for gradient in gradients(0).values()]).norm()
        assert norm == pytest.approx(float(expected))
        assert norm > 1
        assert all(weight.grad is None for weight in weights.values())

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_a_gradient_that_is_not_finite_changes_nothing(self, bad: float) -> None:
        weights = parameters()
        optimizer = MasterAdamW(weights, 0.1)
        take(optimizer, weights, range(2))
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
        weights["a"].grad = torch.full((3, 4), bad)
        assert not torch.tensor(optimizer.step(0.1, 1.0)).isfinite()
        assert all(torch.equal(weights[name], before[name]) for name in weights)
        assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state().items())


class TestBfloat16:
    def test_the_weights_are_the_rounded_masters(self) -> None:
        weights = parameters(torch.bfloat16)
        optimizer = MasterAdamW(weights, 0.0)
        take(optimizer, weights, range(3))
        for name, master in optimizer.masters.items():
            assert master.dtype == torch.float32
            assert torch.equal(weights[name], master.bfloat16())
            assert not torch.equal(master, master.bfloat16().float())

    def test_updates_too_small_for_bfloat16_add_up(self) -> None:
        weights = {"a": nn.Parameter(torch.ones(1, dtype=torch.bfloat16))}
        optimizer = MasterAdamW(weights, 0.0)
        for _ in range(20):
            weights["a"].grad = torch.ones(1, dtype=torch.bfloat16)
            optimizer.step(1e-3, 1.0)  # bfloat16 knows no number between 1 and 0.99609375
        assert weights["a"].item() == pytest.approx(0.98, abs=2e-3)


class TestState:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_a_resumed_training_ends_with_the_same_bits(self, tmp_path: Path, dtype: torch.dtype) -> None:
        whole = parameters(dtype)
        take(MasterAdamW(whole, 0.1), whole, range(6))

        first = parameters(dtype)
        optimizer = MasterAdamW(first, 0.1)
        take(optimizer, first, range(3))
        save_file(optimizer.state(), tmp_path / "state.safetensors")

        second = {name: nn.Parameter(torch.zeros_like(weight)) for name, weight in first.items()}
        resumed = MasterAdamW(second, 0.1)
        resumed.load_state(load_file(tmp_path / "state.safetensors"))
        assert all(torch.equal(second[name], first[name]) for name in first)
        take(resumed, second, range(3, 6))
        assert all(torch.equal(second[name], whole[name]) for name in whole)


class TestSumOverProcesses:
    def test_every_process_gets_the_sum_and_none_counts_as_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = torch.arange(17.0)  # what the other process sends: a's twelve and b's five
        monkeypatch.setattr(Processes, "total", lambda _, values: values + other)
        weights = parameters(torch.bfloat16)
        weights["a"].grad = torch.ones(3, 4, dtype=torch.bfloat16)
        sum_gradients(weights.values(), Processes(0, 2))
        assert weights["a"].grad.flatten().tolist() == [1 + number for number in range(12)]
        assert weights["a"].grad.dtype == torch.bfloat16
        assert weights["b"].grad is not None
        assert weights["b"].grad.tolist() == [12, 13, 14, 15, 16]
