from __future__ import annotations

import contextlib
import json
import shutil
from logging import CRITICAL, WARNING
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import ModelKind, save_tiny_model, tiny_base, tiny_model, tiny_tokenizer

from unimoe.config import ModelConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.base import BaseModel, base_identity, base_layers, base_sizes, load_base
from unimoe.models.bundled import BUNDLED_ID, folder_named
from unimoe.models.quiet import first_line, silence_transformers

CPU = torch.device("cpu")


def load(source: str | Path, layers: int | None = None) -> BaseModel:
    return load_base(ModelConfig(base=str(source), layers=layers), CPU, torch.float32)


def refusal(source: str | Path) -> str:
    """The one line with which a model is refused."""
    with pytest.raises(DataError) as caught:
        load(source)
    line = str(caught.value)
    assert "\n" not in line
    assert str(source) in line
    return line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "tiny")


class TestFolder:
    def test_the_model_comes_back_frozen_in_eval_mode(self, folder: Path) -> None:
        base, original = load(folder), tiny_base()
        for name, weight in original.model.state_dict().items():
            assert torch.equal(base.model.state_dict()[name], weight)
        assert not any(weight.requires_grad for weight in base.model.parameters())
        assert not base.model.training
        assert base.layers == 4
        assert base.tokenizer("yes no").input_ids == original.tokenizer("yes no").input_ids

    def test_loading_prints_nothing(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        load(folder)
        assert capfd.readouterr() == ("", "")


class TestIdentity:
    def test_it_is_name_and_content_whatever_the_place(self, folder: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere" / "tiny"
        shutil.copytree(folder, elsewhere)
        identity = load(folder).identity
        assert identity.startswith("tiny@")
        assert load(elsewhere).identity == identity
        assert base_identity(ModelConfig(base=str(folder))) == identity
        assert base_identity(ModelConfig(base=f"{folder}/")) == identity


class TestFirstLayers:
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    @pytest.mark.parametrize("layers", [1, 3, 4])
    def test_it_is_the_whole_models_layers_in_a_row_and_its_final_norm(
        self, tmp_path: Path, kind: ModelKind, layers: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        folder = save_tiny_model(tmp_path / "tiny", kind)
        capfd.readouterr()
        cut, whole = load(folder, layers), load(folder)
        assert capfd.readouterr() == ("", "")
        ids = torch.tensor([whole.tokenizer("the cat sat on the mat").input_ids])
        decoder = whole.model.model
        states = decoder.embed_tokens(ids)
        rotations = decoder.rotary_emb(states, torch.arange(ids.shape[1])[None])
        masked = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)[None, None]
        for layer in decoder.layers[:layers]:
            states = layer(states, attention_mask=masked, position_embeddings=rotations)
        assert torch.equal(cut.model.model(ids).last_hidden_state, decoder.norm(states))
        assert torch.equal(cut.model(ids).logits, whole.model.lm_head(decoder.norm(states)))

    def test_the_configuration_is_that_of_a_smaller_model(self, tmp_path: Path) -> None:
        folder = save_tiny_model(tmp_path / "tiny", "qwen3")
        cut = load(folder, 3)
        assert (cut.layers, cut.model.config.num_hidden_layers, len(cut.model.config.layer_types)) == (3, 3, 3)
        assert not any(".layers.3." in name for name in cut.model.state_dict())
        assert base_layers(ModelConfig(base=str(folder), layers=3)) == ["full_attention"] * 3
        assert len(base_layers(ModelConfig(base=str(folder)))) == 4
        sizes = base_sizes(ModelConfig(base=str(folder), layers=3))
        assert sizes.parameters == sum(weight.numel() for weight in cut.model.parameters())
        assert sizes.embedding_parameters == base_sizes(ModelConfig(base=str(folder))).embedding_parameters
        cut.model.save_pretrained(tmp_path / "cut")
        cut.tokenizer.save_pretrained(tmp_path / "cut")
        assert load(tmp_path / "cut").layers == 3

    def test_settings_of_every_kind_that_a_model_has_for_each_layer_are_cut(self, tmp_path: Path) -> None:
        model = tiny_model("smollm3", num_hidden_layers=4, no_rope_layers=[1, 1, 0, 1], eos_token_id=[1, 2, 3, 4])
        model.save_pretrained(tmp_path)
        tiny_tokenizer().save_pretrained(tmp_path)
        config = load(tmp_path, 3).model.config
        assert (config.no_rope_layers, len(config.layer_types)) == ([1, 1, 0], 3)
        assert config.eos_token_id == [1, 2, 3, 4]

    def test_another_number_of_layers_is_another_model(self, folder: Path) -> None:
        identities = [load(folder, layers).identity for layers in (None, 2, 3)]
        assert [identity.partition("@")[0] for identity in identities] == ["tiny", "tiny:2", "tiny:3"]
        assert len({identity.partition("@")[2] for identity in identities}) == 3
        assert base_identity(ModelConfig(base=str(folder), layers=3)) == identities[2]
        assert base_identity(ModelConfig(base="nobody/nothing", layers=3)) is None

    def test_more_layers_than_the_model_has_are_refused(self, folder: Path) -> None:
        message = rf"model\.layers 5: {folder} has 4 layers; give 4 at most, or null for all$"
        for use in (base_layers, base_sizes, lambda config: load_base(config, CPU, torch.float32)):
            with pytest.raises(UsageError, match=message):
                use(ModelConfig(base=str(folder), layers=5))
        with pytest.raises(UsageError, match=r"model\.layers 31: bundled:smollm2-135m-instruct has 30 layers"):
            base_layers(ModelConfig(base=BUNDLED_ID, layers=31))

    def test_a_weight_that_is_missing_in_a_kept_layer_is_named(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"], weights["model.layers.2.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(DataError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
            load(folder, 2)
        assert load(folder, 1).layers == 1


class TestRefusals:
    def test_a_folder_without_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "neither *.safetensors nor pytorch_model.bin; save the model with save_pretrained()" in refusal(folder)

    def test_an_unknown_bundled_name(self) -> None:
        assert "the bundled model is bundled:smollm2-135m-instruct" in refusal("bundled:gpt-9")

    @pytest.mark.parametrize("name", ["nobody/nothing-0.1", "no such folder"])
    def test_a_model_that_is_neither_here_nor_to_be_had(self, name: str) -> None:
        assert "cannot be loaded (" in refusal(name)

    @pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c"])
    def test_a_path_where_there_is_none(self, name: str) -> None:
        assert f"model.base {name!r}: no such folder" in refusal(name)

    def test_weights_of_other_shapes_than_the_config(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
        assert "its weights have other shapes than its config.json says" in refusal(folder)
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
    @pytest.mark.parametrize("content", ["{", "{}", ""])
    def test_a_damaged_file(self, folder: Path, file: str, content: str) -> None:
        (folder / file).write_text(content)
        assert "cannot be loaded (" in refusal(folder)

    def test_a_decoder_without_its_output_layer(self, folder: Path) -> None:
        tiny_base().model.model.save_pretrained(folder)  # transformers would invent an output layer
        assert "no weights for lm_head.weight" in refusal(folder)

    def test_a_model_of_another_build(self, folder: Path) -> None:
        from transformers import BertConfig, BertLMHeadModel

        sizes: dict[str, Any] = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        BertLMHeadModel(BertConfig(**sizes, is_decoder=True)).save_pretrained(folder)
        assert "a BertLMHeadModel has no decoder layers at model.layers" in refusal(folder)


class TestQuiet:
    def test_bars_and_reports_are_back_afterwards(self) -> None:
        from huggingface_hub.utils import are_progress_bars_disabled  # type: ignore[attr-defined]
        from transformers.utils import logging

        logging.set_verbosity(WARNING)
        before, downloads = (logging.get_verbosity(), logging.is_progress_bar_enabled()), are_progress_bars_disabled()
        with contextlib.suppress(KeyError), silence_transformers():
            assert not logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled() == downloads
            assert logging.get_verbosity() == CRITICAL
            raise KeyError
        assert before == (logging.get_verbosity(), logging.is_progress_bar_enabled())

    @pytest.mark.parametrize(
        ("message", "line"),
        [
            ("one\ntwo", "one"),
            ("\n\n  Errors in x:\n\tsize of y", "size of y"),
            ("", "ValueError"),
            ("a:", "ValueError"),
        ],
    )
    def test_the_first_line_that_says_something(self, message: str, line: str) -> None:
        assert first_line(ValueError(message)) == line


def test_a_folder_is_itself_and_an_id_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert folder_named("model.base", "mine") == Path("mine")
    assert folder_named("model.base", str(tmp_path / "mine")) == tmp_path / "mine"
    assert folder_named("model.base", "Qwen/Qwen3-0.6B-Base") is None
    assert folder_named("model.base", "gpt2") is None


@pytest.mark.parametrize("path", ["outputs/mine/checkpoint", "/no/where", "./mine", "~/mine"])
def test_a_path_to_nothing_is_no_id(path: str) -> None:
    with pytest.raises(DataError, match=rf"^encoder\.base '{path}': no such folder; check the path"):
        folder_named("encoder.base", path)
