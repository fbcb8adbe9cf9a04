from __future__ import annotations

import contextlib
import json
import shutil
from logging import CRITICAL, WARNING
from pathlib import Path

import pytest
import torch
from support.tiny_models import save_tiny_model, tiny_base

from unimoe.config import ModelConfig
from unimoe.errors import DataError
from unimoe.models.base import BaseModel, base_identity, load_base
from unimoe.models.quiet import first_line, quiet_loading

CPU = torch.device("cpu")


def load(source: str | Path) -> BaseModel:
    return load_base(ModelConfig(base=str(source)), CPU, torch.float32)


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

    def test_the_dtype_asked_for_is_given(self, folder: Path) -> None:
        base = load_base(ModelConfig(base=str(folder)), CPU, torch.bfloat16)
        assert {weight.dtype for weight in base.model.parameters()} == {torch.bfloat16}

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

    def test_other_weights_under_the_same_name_differ(self, folder: Path, tmp_path: Path) -> None:
        other = save_tiny_model(tmp_path / "other" / "tiny", seed=1)
        assert base_identity(ModelConfig(base=str(other))) != base_identity(ModelConfig(base=str(folder)))

    def test_the_hub_alone_knows_that_of_a_hub_model(self) -> None:
        assert base_identity(ModelConfig(base="nobody/nothing")) is None


class TestRefusals:
    def test_a_folder_without_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "no .safetensors file; save the model with save_pretrained()" in refusal(folder)

    def test_an_unknown_bundled_name(self) -> None:
        assert "the bundled model is bundled:smollm2-135m-instruct" in refusal("bundled:gpt-9")

    @pytest.mark.parametrize("name", ["nobody/nothing-0.1", "no such folder"])
    def test_a_model_that_is_neither_here_nor_to_be_had(self, name: str) -> None:
        assert "cannot be loaded (" in refusal(name)

    @pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c"])
    def test_a_path_where_there_is_none(self, name: str) -> None:
        assert f"model.base {name!r}: no such folder" in refusal(name)

    def test_weights_cut_short(self, folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:20_000])
        assert "incomplete metadata" in refusal(folder)

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

    def test_no_tokenizer(self, folder: Path) -> None:
        for file in folder.glob("tokenizer*"):
            file.unlink()
        assert "cannot be loaded (" in refusal(folder)

    def test_a_decoder_without_its_output_layer(self, folder: Path) -> None:
        tiny_base().model.model.save_pretrained(folder)  # transformers would invent an output layer
        assert "no weights for lm_head.weight" in refusal(folder)

    def test_a_model_of_another_build(self, folder: Path) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        GPT2LMHeadModel(GPT2Config(vocab_size=400, n_embd=16, n_layer=1, n_head=2)).save_pretrained(folder)
        assert "a GPT2LMHeadModel has no decoder layers at model.layers" in refusal(folder)


class TestQuiet:
    def test_bars_and_reports_are_back_afterwards(self) -> None:
        from transformers import modeling_gguf_pytorch_utils as gguf_loader
        from transformers.utils import logging

        logging.set_verbosity(WARNING)
        before = logging.get_verbosity(), logging.is_progress_bar_enabled(), vars(gguf_loader)["tqdm"]
        with contextlib.suppress(KeyError), quiet_loading():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == CRITICAL
            raise KeyError
        assert before == (logging.get_verbosity(), logging.is_progress_bar_enabled(), vars(gguf_loader)["tqdm"])

    def test_bars_of_downloads_stay(self) -> None:
        from huggingface_hub.utils import are_progress_bars_disabled  # type: ignore[attr-defined]

        before = are_progress_bars_disabled()
        with quiet_loading():
            assert are_progress_bars_disabled() == before
        assert are_progress_bars_disabled() == before

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
