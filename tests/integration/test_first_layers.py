"""A base model cut to its first layers, through training, evaluation and the refusals of what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.scripts import assert_refused, call_script, successful
from support.tiny_models import saved, tiny_model, tiny_tokenizer

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


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        (
            ["train.py", "--arm", "rank_only_r8"],
            "lora.first_layer=15",
            "lora.first_layer 15: this model has layers 0 to 1, 2 in all; give one of them",
        ),
        (["run_experiment.py"], "model.layers=3", "has 2 layers; give 2 at most, or null for all"),
        (["run_experiment.py"], "lora.first_layer=1", "this model mixes kinds of layers; set it to 0"),
    ],
)
def test_layers_that_the_model_lacks_are_refused_before_anything_is_written(
    command: list[str], change: str, words: str, tmp_path: Path
) -> None:
    """The shipped experiment with another base model, of two layers."""
    model = tiny_model("gemma2", head_dim=16) if "mixes" in words else tiny_model("llama")
    own = ["--set", f"model.base={saved(tmp_path / 'model', model, tiny_tokenizer())}", "--set", "model.layers=null"]
    options = [*own, "--set", change, "--output-dir", str(tmp_path / "outputs")]
    assert_refused(call_script(*command, "--config", "experiments/bundled", *options), 2, words)
    assert not (tmp_path / "outputs").exists()
