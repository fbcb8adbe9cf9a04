"""The registry of losses: names without torch, refusals, and a loss from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from unimoe.config.files import parse_config
from unimoe.config.training import LossConfig, LossOptions
from unimoe.core.errors import UsageError
from unimoe.training.losses import LOSSES, Loss, register_loss
from unimoe.training.losses.listwise import ListwiseLoss


def test_a_config_is_checked_without_loading_torch() -> None:
    code = "import sys; from unimoe.config.training import LossConfig; LossConfig(name='lambdaloss', k=3); "
    code += "print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "sentence_transformers"} & set(loaded)


def test_every_option_of_a_loss_is_one_that_a_config_has() -> None:
    for name, loss in LOSSES.items():
        assert set(loss.all_options) <= set(LossOptions.model_fields), name


def test_a_loss_from_outside_is_named_computed_and_checked_like_any_other() -> None:
    register_loss("toy", Loss(lambda s, y, options: options.sigma * torch.cat(list(s)).square().mean(), ("sigma",)))
    try:
        loss = ListwiseLoss(LossConfig(name="toy", sigma=2.0, activation="Tanh"))
        assert float(loss([torch.tensor([0.5])], [torch.tensor([1.0])])) == pytest.approx(2 * 0.46211716**2)
        assert loss.get_config_dict() == {"name": "toy", "activation": "Tanh", "sigma": 2.0}
        with pytest.raises(UsageError, match=r"the loss toy does not read it; remove it \(toy takes activation, sigma"):
            parse_config(LossConfig, {"name": "toy", "k": 3}, source="test")
    finally:
        LOSSES._things.pop("toy")
