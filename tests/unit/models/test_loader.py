"""Loading a checkpoint for scoring, plainly, with merged adapters and with compiled layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import tiny_experiment_dict
from support.tiny_models import tiny_base

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.config.training import LoraConfig
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1

CPU = torch.device("cpu")
PAIRS = [("cat", "the cat sat on the mat"), ("cat", "rain"), ("dog", "the old house")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loader")
    config = tiny_experiment_dict(folder)
    model = add_lora(tiny_base(), LoraConfig(**config["lora"]), seed=0)
    torch.manual_seed(1)
    for weight in adapter_parameters(model).values():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder / "checkpoint")
    return folder


def trained(folder: Path, **evaluation: Any) -> UnimodelForExp1:
    config = tiny_experiment_dict(folder)
    config["evaluation"] = {**config["evaluation"], **evaluation}
    loader = ModelLoader(parse_config(Experiment, config, source="tiny"), CPU, torch.float32)
    return loader.trained(folder / "checkpoint")


def gaps(model: UnimodelForExp1) -> Any:
    return model.rerank(PAIRS, output="margin")


def test_merged_adapters_score_as_adapters_do(folder: Path) -> None:
    plain, merged = trained(folder), trained(folder, merge_adapters=True)
    assert any("lora" in name for name, _ in plain.model.named_parameters())
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    np.testing.assert_allclose(gaps(merged), gaps(plain), rtol=1e-4, atol=1e-5)
    assert (merged.frozen_layers is None) == (plain.frozen_layers is None)  # the layers below stay shared


def test_a_share_of_the_kept_layers_is_the_layer_that_it_means(folder: Path) -> None:
    loaded = []
    for first_layer in (0.5, 2):
        config = tiny_experiment_dict(folder)
        config["model"]["layers"] = 3
        config["lora"] = {"first_layer": first_layer}
        loader = ModelLoader(parse_config(Experiment, config, source="tiny"), CPU, torch.float32)
        assert loader.first_layer == 2
        loaded.append(loader.zero_shot())
    np.testing.assert_array_equal(gaps(loaded[0]), gaps(loaded[1]))
    assert all(model.frozen_layers is not None for model in loaded)


def test_compiled_layers_score_as_layers_do_and_are_compiled_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, compiled = CompileCounterWithBackend("eager"), torch.compile
    monkeypatch.setattr(torch, "compile", lambda *given, **options: compiled(*given, backend=counter, **options))
    torch._dynamo.reset()
    model, plain = trained(folder, compile=True), trained(folder)
    np.testing.assert_allclose(gaps(model), gaps(plain), rtol=1e-4, atol=1e-5)
    first = counter.frame_count
    assert first > 0
    texts = ["the cat sat on the mat", "rain " * 20, "a quick sort", "house"]
    np.testing.assert_allclose(model.encode(texts), plain.encode(texts), rtol=1e-4, atol=1e-5)
    model.rerank([("rain", "rain " * number) for number in range(1, 6)])
    assert counter.frame_count <= 2 * first  # a second time at most, for lengths that vary
