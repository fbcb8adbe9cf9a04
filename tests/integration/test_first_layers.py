"""A base model cut to its first layers, through training, evaluation and the refusals of what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.scripts import assert_refused, call_script

from unimoe.checkpoint import read_checkpoint
from unimoe.results import read_result

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--set", "training.steps=2", "--set", "training.save_every=1"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def checkpoint(config: Path) -> Path:
    """An arm that was trained on the first three of four layers."""
    done = call_script(
        "train.py", "--arm", "rank_only_r8", "--config", config, *SMALL, "--set", "model.layers=3",
        "--output-dir", config.parent / "outputs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_an_evaluation_cuts_the_model_as_the_training_did(checkpoint: Path) -> None:
    done = call_script("evaluate.py", "--checkpoint", checkpoint, "--task", "reranking")
    assert done.returncode == 0, done.stderr
    result = read_result(checkpoint.parent / "results" / "reranking" / "apidocs.json")
    trained = read_checkpoint(checkpoint)
    assert trained.base_model.startswith("tiny-model:3@")
    assert result.identity.base_model == trained.base_model
    assert result.config["model"]["layers"] == 3


def test_another_number_of_layers_is_never_evaluated(checkpoint: Path, config: Path) -> None:
    other = call_script("evaluate.py", "--checkpoint", checkpoint, "--config", config)
    assert_refused(other, 3, "its model section differs", "tiny-model:3@")


def test_another_number_of_layers_never_joins_a_training(checkpoint: Path, config: Path) -> None:
    same_place = ["--output-dir", str(checkpoint.parents[2])]
    other = call_script(
        "train.py", "--arm", "rank_only_r8", "--config", config, *SMALL, "--set", "model.layers=4", "--resume",
        *same_place,
    )  # fmt: skip
    assert other.returncode == 3
    assert "another training" in other.stderr


def test_results_of_another_number_of_layers_never_mix(checkpoint: Path, config: Path) -> None:
    """Zero-shot results have no checkpoint; the identity of the base model alone tells them apart."""
    zero_shot = ["--zero-shot", "--config", str(config), "--task", "reranking"]
    zero_shot += ["--output-dir", str(checkpoint.parents[2])]
    done = call_script("evaluate.py", *zero_shot, "--set", "model.layers=3")
    assert done.returncode == 0, done.stderr
    other = call_script("evaluate.py", *zero_shot, "--set", "model.layers=4")
    assert other.returncode == 3
    assert "base_model" in other.stderr
