"""A base model cut to its first layers, through training, evaluation and the refusals of what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.scripts import assert_refused, call_script, successful
from support.tiny_models import save_tiny_model, tiny_model, tiny_tokenizer

from unimoe.models.checkpoint import read_checkpoint
from unimoe.results import read_result

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--set", "training.steps=2", "--set", "training.save_every=1"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def checkpoint(config: Path) -> Path:
    """An arm that was trained on the first three of four layers."""
    done = successful(call_script(
        "train.py", "--arm", "rank_only_r8", "--config", config, *SMALL, "--set", "model.layers=3",
        "--output-dir", config.parent / "outputs",
    ))  # fmt: skip
    return Path(done.stdout.strip())


def test_an_evaluation_cuts_the_model_as_the_training_did(checkpoint: Path) -> None:
    successful(call_script("evaluate.py", "--checkpoint", checkpoint, "--task", "reranking"))
    result = read_result(checkpoint.parent / "results" / "reranking" / "apidocs.json")
    trained = read_checkpoint(checkpoint)
    assert trained.base_model.startswith("tiny-model:3@")
    assert result.identity.base_model == trained.base_model
    assert result.config["model"]["layers"] == 3


def test_another_number_of_layers_never_joins_a_training(checkpoint: Path, config: Path) -> None:
    same_place = ["--output-dir", str(checkpoint.parents[2])]
    other = call_script(
        "train.py", "--arm", "rank_only_r8", "--config", config, *SMALL, "--set", "model.layers=4",
        *same_place,
    )  # fmt: skip
    assert other.returncode == 3
    assert "another training" in other.stderr


LACKING = [
    ("lora.first_layer=15", "lora.first_layer 15: this model has layers 0 to 1, 2 in all; give one of them"),
    ("model.layers=3", "has 2 layers; give 2 at most, or null for all"),
]


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one's own, with two layers."""
    return save_tiny_model(tmp_path_factory.mktemp("own") / "model", layers=2)


class TestLayersThatTheModelLacks:
    """The shipped experiment with another base model: refused before anything is evaluated or written."""

    @pytest.mark.parametrize(("change", "words"), LACKING)
    @pytest.mark.parametrize("command", [["run_experiment.py"], ["train.py", "--arm", "rank_only_r8"]])
    def test_nothing_is_written(
        self, two_layers: Path, tmp_path: Path, command: list[str], change: str, words: str
    ) -> None:
        output_dir = tmp_path / "outputs"
        own = ["--set", f"model.base={two_layers}", "--set", "model.layers=null"]
        options = [*own, "--set", change, "--output-dir", str(output_dir)]
        assert_refused(call_script(*command, "--config", "experiments/bundled", *options), 2, words)
        assert not output_dir.exists()

    def test_a_model_that_mixes_kinds_of_layers(self, tmp_path: Path) -> None:
        model = tiny_model("gemma2", head_dim=16)
        model.save_pretrained(tmp_path / "model")
        tiny_tokenizer().save_pretrained(tmp_path / "model")
        own = ["--set", f"model.base={tmp_path / 'model'}", "--set", "model.layers=null"]
        options = [*own, "--set", "lora.first_layer=1"]
        done = call_script(
            "run_experiment.py", "--config", "experiments/bundled", *options, "--output-dir", tmp_path / "outputs"
        )
        assert_refused(done, 2, "this model mixes kinds of layers; set it to 0")
        assert not (tmp_path / "outputs").exists()

    def test_a_share_fits_every_model(self, two_layers: Path, tmp_path: Path) -> None:
        output_dir = tmp_path / "outputs"
        options = [f"model.base={two_layers}", "model.layers=null", "lora.first_layer=0.5", "model.max_length=256",
                   "training.steps=1", "training.warmup_steps=0"]  # fmt: skip
        successful(call_script(
            "train.py", "--arm", "joint_r8", "--config", "experiments/bundled", "--output-dir", output_dir,
            *[part for option in options for part in ("--set", option)],
        ))  # fmt: skip
        adapter = next(output_dir.rglob("joint_r8/seed_0/checkpoint/adapter_config.json"))
        assert json.loads(adapter.read_text(encoding="utf-8"))["layers_to_transform"] == [1]
