"""Adapted layers that add in one pass compute what PEFT's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import nn

from unimoe.models.quick_lora import QuickLora, quicken_lora
from unimoe.models.work import counted_products


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.nn.functional.silu(self.first(x)))
        return found


def adapted(dropout: float = 0.0, **options: Any) -> Any:
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=12, lora_dropout=dropout, target_modules=["first", "second"], **options)
    model = get_peft_model(Perceptron(), config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # PEFT's are zeros, which add nothing
            nn.init.normal_(weight)
    return model.double()  # what is left of the rounding shows no error in what is computed


def outcome(model: Any, dropout_seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(dropout_seed)
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    found = model(x)
    found.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert x.grad is not None
    return found.detach(), {**gradients, "x": x.grad}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_output_and_gradients_are_those_of_peft(dropout: float) -> None:
    model, quick = adapted(dropout), adapted(dropout)
    quicken_lora(quick)
    assert sum(isinstance(module, QuickLora) for module in quick.modules()) == 2
    (expected, gradients), (found, quick_gradients) = outcome(model), outcome(quick)
    torch.testing.assert_close(found, expected)
    assert gradients.keys() == quick_gradients.keys()
    assert len(gradients) == 5
    for name, gradient in gradients.items():
        torch.testing.assert_close(quick_gradients[name], gradient)


def test_the_same_products_are_counted() -> None:
    model, quick = adapted(), adapted()
    quicken_lora(quick)
    with counted_products() as expected:
        outcome(model)
    with counted_products() as found:
        outcome(quick)
    assert found.flop == expected.flop > 0


def test_names_disabled_adapters_and_merging_are_those_of_peft() -> None:
    model, quick = adapted(), adapted()
    quicken_lora(quick)
    x = torch.randn(3, 12, dtype=torch.float64)
    assert list(quick.state_dict()) == list(model.state_dict())
    with model.disable_adapter(), quick.disable_adapter():
        torch.testing.assert_close(quick(x), model(x))
    merged = quick.merge_and_unload()
    assert type(merged.first) is nn.Linear
    torch.testing.assert_close(merged(x), model(x))


def test_inputs_of_another_dtype_are_left_to_peft() -> None:
    model, quick = adapted(), adapted()
    quicken_lora(quick)
    x = torch.randn(3, 12)
    for mixed in (model, quick):
        mixed.first.base_layer.float()  # its adapters stay in float64
        mixed.second.float()
    torch.testing.assert_close(quick(x), model(x))


def test_other_kinds_of_adapters_stay_as_they_are() -> None:
    model = adapted(use_dora=True)
    quicken_lora(model)
    assert {type(module) for module in model.modules() if isinstance(module, Linear)} == {Linear}
