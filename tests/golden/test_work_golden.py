"""The count of matrix products: by hand, and against PyTorch's own counter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from unimoe.config.training import LoraConfig
from unimoe.models.adapter import add_lora
from unimoe.models.work import counted_products

ROWS, INPUTS, OUTPUTS = 5, 7, 3
FORWARD = 2 * 5 * 7 * 3  # a multiply and an add for each of 5 x 3 numbers, 7 times


@pytest.mark.parametrize(
    ("weight_learns", "input_learns", "backward"),
    [(False, False, 0), (True, False, 1), (False, True, 1), (True, True, 2)],
)
def test_one_layer_by_hand(weight_learns: bool, input_learns: bool, backward: int) -> None:
    layer = nn.Linear(INPUTS, OUTPUTS).requires_grad_(weight_learns)
    rows = torch.ones(ROWS, INPUTS, requires_grad=input_learns)
    with counted_products() as counted:
        output = layer(rows)
        assert counted.flop == FORWARD
        if output.requires_grad:
            output.sum().backward()
        assert counted.flop == (1 + backward) * FORWARD


def of_linear_layers(run: Callable[[], None]) -> int:
    """PyTorch's count of all products but those of attention, which are batched."""
    with FlopCounterMode(display=False) as peer:
        run()
    counts = peer.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if str(operation) in {"aten.mm", "aten.addmm"})


@pytest.mark.parametrize("first_layer", [0, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_decoder_with_adapters_against_pytorch(first_layer: int, recompute: bool) -> None:
    base = tiny_base(layers=4)
    base.model.set_attn_implementation("eager")
    decoder = add_lora(base, LoraConfig(r=4, first_layer=first_layer), seed=0).base_model.model.model
    if recompute:
        base.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    decoder.train()
    states = torch.randn(3, 11, HIDDEN, requires_grad=True)  # rows, so that each product is one of two dimensions

    def run() -> None:
        found: Tensor = decoder(inputs_embeds=states, use_cache=False).last_hidden_state
        found.sum().backward()  # type: ignore[no-untyped-call]

    with counted_products() as counted:
        run()
    assert counted.flop == of_linear_layers(run) > 0
