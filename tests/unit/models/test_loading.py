"""Loading base models, whole or their first layers, and adapters on them; what does not fit is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.experiments import tiny_experiment_dict
from support.tiny_models import ModelKind, random_model, save_tiny_model, saved, tiny_base, tiny_model
from torch._dynamo.testing import CompileCounterWithBackend

from unimoe.config import Experiment, ModelConfig, PromptConfig
from unimoe.config.files import parse_config
from unimoe.config.training import LoraConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.adapter import adapter_parameters, add_lora, load_lora, merge_lora
from unimoe.models.base import BaseModel, base_identity, base_layers, base_sizes, load_base, use_one_kernel_norms
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import ADAPTER_FILE
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1

CPU = torch.device("cpu")
PAIRS = [("cat", "the cat sat on the mat"), ("cat", "rain"), ("", "")]
UPPER = LoraConfig(first_layer=2)


def config_of(source: str | Path, layers: int | None = None) -> ModelConfig:
    return ModelConfig(base=str(source), layers=layers)


def load(source: str | Path, layers: int | None = None) -> BaseModel:
    return load_base(config_of(source, layers), CPU, torch.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "tiny")


@pytest.mark.parametrize(("kind", "layers"), [("llama", 1), ("qwen3", 3)])
def test_a_cut_model_is_the_first_layers_and_the_final_norm(tmp_path: Path, kind: ModelKind, layers: int) -> None:
    folder = save_tiny_model(tmp_path / "tiny", kind)
    cut, whole = load(folder, layers), load(folder)
    ids = torch.tensor([whole.tokenizer("the cat sat on the mat").input_ids])
    decoder = whole.model.model
    states = decoder.embed_tokens(ids)
    rotations = decoder.rotary_emb(states, torch.arange(ids.shape[1])[None])
    masked = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)[None, None]
    for layer in decoder.layers[:layers]:
        states = layer(states, attention_mask=masked, position_embeddings=rotations)
    assert torch.equal(cut.model(ids).logits, whole.model.lm_head(decoder.norm(states)))
    assert base_layers(config_of(folder, layers)) == ["full_attention"] * layers
    sizes = base_sizes(config_of(folder, layers))
    assert sizes.parameters == sum(weight.numel() for weight in cut.model.parameters())
    assert sizes.embedding_parameters == base_sizes(config_of(folder)).embedding_parameters
    saved(tmp_path / "cut", cut.model, cut.tokenizer)
    assert load(tmp_path / "cut").layers == cut.layers == layers


def test_the_identity_is_of_name_weights_and_layers_whatever_the_place(folder: Path, tmp_path: Path) -> None:
    identities = [load(folder, layers).identity for layers in (None, 2, 3)]
    names, hashes = zip(*(identity.split("@") for identity in identities), strict=True)
    assert names == ("tiny", "tiny:2", "tiny:3")
    assert len(set(hashes)) == 3
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere" / "tiny")
    assert load(elsewhere).identity == identities[0] == base_identity(config_of(f"{folder}/"))
    assert base_identity(config_of(folder, 3)) == identities[2]


def test_more_layers_than_the_model_has_are_refused(folder: Path) -> None:
    message = rf"model\.layers 5: {folder} has 4 layers; give 4 at most, or null for all$"
    for use in (base_layers, base_sizes, lambda config: load_base(config, CPU, torch.float32)):
        with pytest.raises(UsageError, match=message):
            use(config_of(folder, 5))
    with pytest.raises(UsageError, match=r"model\.layers 31: bundled:smollm2-135m-instruct has 30 layers"):
        base_layers(config_of(BUNDLED_ID, 31))


def test_a_weight_that_is_missing_matters_in_a_kept_layer_alone(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder, 2)
    assert load(folder, 1).layers == 1


def without_output_layer(folder: Path) -> None:
    tiny_base().model.model.save_pretrained(folder)  # transformers would invent one


def of_other_shapes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))


def of_another_build(folder: Path) -> None:
    random_model("AutoModelForCausalLM", "bert", 400, is_decoder=True).save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "neither *.safetensors nor pytorch_model.bin; save"),
        (without_output_layer, "no weights for lm_head.weight"),
        (of_other_shapes, "its weights have other shapes than its config.json says"),
        (of_another_build, "a BertLMHeadModel has no decoder layers at model.layers"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: Invalid JSON"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be loaded ("),
    ],
)
def test_a_folder_that_is_no_model_is_refused(folder: Path, damage: Any, words: str) -> None:
    damage(folder)
    with pytest.raises(DataError) as caught:
        load(folder)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bundled:gpt-9", "the bundled model is bundled:smollm2-135m-instruct"),
        ("nobody/nothing-0.1", r"cannot be loaded \("),
        ("/no/such/folder", "model.base '/no/such/folder': no such folder; check the path"),
    ],
)
def test_a_name_of_nothing_is_refused(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(name)


def margins(base: BaseModel) -> Any:
    return UnimodelForExp1(base, PromptConfig(), 256).rerank(PAIRS, output="margin")


def trained_adapter(folder: Path, config: LoraConfig = UPPER) -> Any:
    """Write an adapter with random weights to ``folder``; returns the margins of the model it was made with."""
    base = tiny_base()
    model = add_lora(base, config, seed=0)
    torch.manual_seed(1)
    for weight in adapter_parameters(model).values():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return margins(base)


def test_new_adapters_are_in_the_layers_asked_for_in_the_models_dtype_by_the_seed_alone() -> None:
    def adapters(seed: int, noise: int) -> dict[str, torch.nn.Parameter]:
        torch.manual_seed(noise)
        base = tiny_base()
        base.model.to(torch.bfloat16)
        return adapter_parameters(add_lora(base, LoraConfig(first_layer=3), seed))

    one, same, other = adapters(5, 123), adapters(5, 321), adapters(6, 123)
    assert len(one) == 2 * len(LoraConfig().target_modules)
    assert all(".layers.3." in name and weight.dtype == torch.bfloat16 for name, weight in one.items())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_layer": 4}, r"lora\.first_layer 4: this model has layers 0 to 3"),
        ({"target_modules": ["q_proj", "k_prj"]}, r"no linear layer 'k_prj' .* \(did you mean 'k_proj'\?\)"),
        (
            {"target_modules": ["q_proj", "lm_head"]},
            "no linear layer 'lm_head' in this model; there is down_proj, gate_proj, ",
        ),
        ({"target_modules": ["input_layernorm"]}, "no linear layer 'input_layernorm'"),
    ],
)
def test_what_cannot_be_adapted_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        add_lora(tiny_base(), LoraConfig(**settings), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("first_layer", [0, 2])
def test_a_saved_adapter_scores_the_same_bits_and_merged_up_to_rounding(tmp_path: Path, first_layer: int) -> None:
    before, base = trained_adapter(tmp_path, LoraConfig(first_layer=first_layer)), tiny_base()
    assert np.abs(margins(base) - before).max() > 0.01
    model = load_lora(base, tmp_path)
    np.testing.assert_array_equal(margins(base), before)
    assert adapter_parameters(model) == {}
    assert not model.training
    exact, low = tiny_base(), tiny_base()
    merge_lora(exact, tiny_base(), tmp_path)
    np.testing.assert_allclose(margins(exact), before, rtol=1e-4, atol=1e-5)
    low.model.to(torch.bfloat16)
    merge_lora(low, tiny_base(), tmp_path)
    assert exact.model.state_dict().keys() == tiny_base().model.state_dict().keys()
    for name, weight in low.model.state_dict().items():  # one rounding, of the merged weight
        assert torch.equal(weight, exact.model.state_dict()[name].bfloat16())


def change_settings(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_hub_is_not_asked_for_an_adapters_base(tmp_path: Path, looked_up: list[str]) -> None:
    trained_adapter(tmp_path)
    change_settings(tmp_path, base_model_name_or_path="someone/a-model")
    load_lora(tiny_base(), tmp_path)
    assert looked_up == []


def lacking_a_weight(folder: Path) -> None:
    weights = load_file(folder / ADAPTER_FILE)
    save_file({name: weights[name] for name in weights if name != min(weights)}, folder / ADAPTER_FILE)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: change_settings(folder, r=4), "size mismatch for"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), ""),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "NONE"}'), ""),
        (lacking_a_weight, "layers.2.mlp.down_proj.lora_A.weight is on one side only"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    trained_adapter(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match="the adapter does not fit") as caught:
        load_lora(tiny_base(), tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def loader(folder: Path, **sections: Any) -> ModelLoader:
    config = tiny_experiment_dict(folder)
    for section, values in sections.items():
        config[section] = {**config[section], **values}
    return ModelLoader(parse_config(Experiment, config, source="tiny"), CPU, torch.float32)


def trained(folder: Path, **evaluation: Any) -> UnimodelForExp1:
    if not (folder / "checkpoint").exists():
        trained_adapter(folder / "checkpoint", LoraConfig(**tiny_experiment_dict(folder)["lora"]))
    return loader(folder, evaluation=evaluation).trained(folder / "checkpoint")


def test_merged_adapters_score_as_adapters_do(tmp_path: Path) -> None:
    plain, merged = trained(tmp_path), trained(tmp_path, merge_adapters=True)
    assert any("lora" in name for name, _ in plain.model.named_parameters())
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    found, expected = (model.rerank(PAIRS, output="margin") for model in (merged, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (merged.frozen_layers is None) == (plain.frozen_layers is None)  # the layers below stay shared


def test_a_share_of_the_kept_layers_is_the_layer_that_it_means(tmp_path: Path) -> None:
    cut = loader(tmp_path, model={"layers": 3}, lora={"first_layer": 0.5})
    assert cut.first_layer == 2
    assert cut.zero_shot().frozen_layers is cut.frozen_layers is not None


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_norms_of_one_kernel_which_models_on_a_gpu_have_give_the_same(kind: str) -> None:
    model, ids = tiny_model(kind, head_dim=16), torch.arange(40)[None]
    for name, weight in model.named_parameters():
        weight.data.mul_(torch.rand_like(weight) + 0.5 if "norm" in name else 1)
    expected = model(ids).logits
    use_one_kernel_norms(model)
    assert not [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    torch.testing.assert_close(model(ids).logits, expected)


def test_compiled_layers_score_alike_and_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, compiled = CompileCounterWithBackend("eager"), torch.compile
    monkeypatch.setattr(torch, "compile", lambda *given, **options: compiled(*given, backend=counter, **options))
    torch._dynamo.reset()
    model, plain = trained(tmp_path, compile=True), trained(tmp_path)
    found, expected = (each.rerank(PAIRS, output="margin") for each in (model, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    first = counter.frame_count
    assert first > 0
    texts = ["the cat sat on the mat", "rain " * 20, "a quick sort", "house"]
    np.testing.assert_allclose(model.encode(texts), plain.encode(texts), rtol=1e-4, atol=1e-5)
    model.rerank([("rain", "rain " * number) for number in range(1, 6)])
    assert counter.frame_count <= 2 * first  # a second time at most, for lengths that vary
