from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.adapter import adapter_parameters, add_lora, load_lora, merge_lora
from unimoe.models.base import BaseModel
from unimoe.models.checkpoint import ADAPTER_FILE
from unimoe.models.unimodel import UnimodelForExp1

PAIRS = [("cat", "the cat sat on the mat"), ("cat", "rain"), ("", "")]
UPPER = LoraConfig(first_layer=2)


def gaps(base: BaseModel) -> Any:
    return UnimodelForExp1(base, PromptConfig(), 256).rerank(PAIRS, output="margin")


def trained_adapter(folder: Path, config: LoraConfig = UPPER) -> Any:
    """Write an adapter with random weights to ``folder``; returns the gaps of the model it was made with."""
    base = tiny_base()
    model = add_lora(base, config, seed=0)
    torch.manual_seed(1)
    for weight in adapter_parameters(model).values():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return gaps(base)


def edit_adapter(folder: Path, old: str, new: str) -> None:
    """Rename the weights of an adapter file."""
    weights = load_file(folder / ADAPTER_FILE)
    save_file({name.replace(old, new): weight for name, weight in weights.items()}, folder / ADAPTER_FILE)


class TestAdd:
    def test_only_the_layers_asked_for_are_adapted(self) -> None:
        names = adapter_parameters(add_lora(tiny_base(), LoraConfig(first_layer=3), seed=0))
        assert len(names) == 2 * len(LoraConfig().target_modules)
        assert all(".layers.3." in name for name in names)
        assert list(names) == sorted(names)

    def test_the_seed_alone_decides_the_weights(self) -> None:
        torch.manual_seed(123)
        one = adapter_parameters(add_lora(tiny_base(), UPPER, seed=5))
        torch.manual_seed(321)
        same = adapter_parameters(add_lora(tiny_base(), UPPER, seed=5))
        other = adapter_parameters(add_lora(tiny_base(), UPPER, seed=6))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not all(torch.equal(one[name], other[name]) for name in one)

    def test_adapters_have_the_dtype_of_the_model(self) -> None:
        base = tiny_base()
        base.model.to(torch.bfloat16)
        weights = adapter_parameters(add_lora(base, UPPER, seed=0)).values()
        assert {weight.dtype for weight in weights} == {torch.bfloat16}

    @pytest.mark.parametrize("first_layer", [4, 9])
    def test_a_layer_beyond_the_last_is_refused(self, first_layer: int) -> None:
        with pytest.raises(UsageError, match=rf"lora\.first_layer {first_layer}: this model has layers 0 to 3"):
            add_lora(tiny_base(), LoraConfig(first_layer=first_layer), seed=0)

    @pytest.mark.parametrize(
        ("modules", "message"),
        [
            (["nonsense"], "no module 'nonsense'"),
            (["q_proj", "k_prj"], r"no module 'k_prj' .* \(did you mean 'k_proj'\?\)"),  # PEFT would take it
            (["q_proj", "lm_head"], "no module 'lm_head' in the layers"),
            (["input_layernorm"], "not supported"),
        ],
    )
    def test_modules_that_cannot_be_adapted_are_refused_in_one_line(self, modules: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=rf"^lora\.target_modules: .*{message}") as caught:
            add_lora(tiny_base(), LoraConfig(target_modules=modules), seed=0)
        assert "\n" not in str(caught.value)


class TestLoad:
    @pytest.mark.parametrize("first_layer", [0, 2])
    def test_scores_come_back_bit_for_bit(self, tmp_path: Path, first_layer: int) -> None:
        before = trained_adapter(tmp_path, LoraConfig(first_layer=first_layer))
        base = tiny_base()
        assert np.abs(gaps(base) - before).max() > 0.01
        model = load_lora(base, tmp_path)
        np.testing.assert_array_equal(gaps(base), before)
        assert adapter_parameters(model) == {}
        assert not model.training

    def test_the_hub_is_not_asked_for_the_base(self, tmp_path: Path, looked_up: list[str]) -> None:
        trained_adapter(tmp_path)
        path = tmp_path / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "someone/a-model"}))
        load_lora(tiny_base(), tmp_path)
        assert looked_up == []


class TestMerge:
    @staticmethod
    def merged(folder: Path, dtype: torch.dtype) -> BaseModel:
        base = tiny_base()
        base.model.to(dtype)
        merge_lora(base, tiny_base(), folder)
        return base

    @pytest.mark.parametrize("first_layer", [0, 2])
    def test_scores_are_those_of_the_adapters(self, tmp_path: Path, first_layer: int) -> None:
        expected = trained_adapter(tmp_path, LoraConfig(first_layer=first_layer))
        found = gaps(self.merged(tmp_path, torch.float32))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(found, gaps(tiny_base()), atol=1e-3)

    def test_it_leaves_a_plain_model_with_weights_in_its_dtype(self, tmp_path: Path) -> None:
        trained_adapter(tmp_path)
        exact, rounded = self.merged(tmp_path, torch.float32).model, self.merged(tmp_path, torch.bfloat16).model
        assert exact.state_dict().keys() == tiny_base().model.state_dict().keys()
        for name, weight in rounded.state_dict().items():
            assert weight.dtype == torch.bfloat16
            assert torch.equal(weight, exact.state_dict()[name].bfloat16())  # one rounding, of the merged weight

    def test_an_adapter_of_another_model_is_refused(self, tmp_path: Path) -> None:
        trained_adapter(tmp_path, LoraConfig(first_layer=3))
        with pytest.raises(DataError, match="does not fit"):
            merge_lora(tiny_base(layers=2), tiny_base(layers=2), tmp_path)


class TestMisfits:
    def refused(self, folder: Path, base: BaseModel | None = None) -> str:
        """The one line of the refusal."""
        with pytest.raises(DataError, match="the adapter does not fit") as caught:
            load_lora(base or tiny_base(), folder)
        line = str(caught.value)
        assert "\n" not in line
        assert line.startswith(str(folder))
        return line

    def test_an_adapter_for_wider_layers(self, tmp_path: Path) -> None:
        trained_adapter(tmp_path)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"r": 4}))
        assert "size mismatch for" in self.refused(tmp_path)

    def test_weights_for_modules_that_the_model_lacks(self, tmp_path: Path) -> None:
        trained_adapter(tmp_path)
        edit_adapter(tmp_path, "layers.2.self_attn.q_proj", "layers.9.self_attn.q_proj")
        assert "layers.2.self_attn.q_proj.lora_A.weight is on one side only" in self.refused(tmp_path)

    def test_weights_that_are_missing(self, tmp_path: Path) -> None:
        trained_adapter(tmp_path)
        weights = load_file(tmp_path / ADAPTER_FILE)
        gone = sorted(weights)[0]
        del weights[gone]
        save_file(weights, tmp_path / ADAPTER_FILE)
        assert f"{gone} is on one side only" in self.refused(tmp_path)

    @pytest.mark.parametrize("content", ["{", "[]", "{}", '{"peft_type": "NONE"}'])
    def test_a_damaged_config(self, tmp_path: Path, content: str) -> None:
        trained_adapter(tmp_path)
        (tmp_path / "adapter_config.json").write_text(content)
        self.refused(tmp_path)
