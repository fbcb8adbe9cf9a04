"""Training: what it leaves behind, that arms are fair, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.experiments import tiny_experiment

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.models.checkpoint import ADAPTER_FILE, Checkpoint, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.trainer import StepReport, train_arm

CPU = torch.device("cpu")


class KilledError(Exception):
    """Stands for a process that ends between two steps."""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def data(experiment: Experiment) -> TrainingData:
    return load_training_data(experiment)


def placed(experiment: Experiment, folder: Path) -> Experiment:
    return experiment.model_copy(update={"output_dir": str(folder)})


def train(
    experiment: Experiment,
    data: TrainingData,
    arm: str,
    seed: int = 0,
    die_after: int | None = None,
    between: Callable[[], None] = lambda: None,
    **options: Any,
) -> Path:
    def on_step(report: StepReport) -> None:
        between()
        if report.step == die_after:
            raise KilledError

    loader = ModelLoader(experiment, CPU, torch.float32)
    return train_arm(
        experiment,
        arm,
        seed,
        base=loader.fresh_base(),
        data=data,
        frozen_layers=loader.frozen_layers,
        on_step=on_step,
        **options,
    )


def log(checkpoint: Path) -> list[dict[str, float]]:
    lines = (checkpoint.parent / "logs" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


class TestWhatItLeaves:
    def test_a_second_training_in_the_folder_is_refused_and_the_first_goes_on(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)

        def second() -> None:
            with pytest.raises(UsageError, match="another process works in this folder; wait for it"):
                train(here, data, "rank_only_r8")

        folder = train(here, data, "rank_only_r8", between=second)
        assert [line["step"] for line in log(folder)] == list(range(1, experiment.training.steps + 1))

    def test_checkpoint_says_where_it_came_from(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        folder = train(placed(experiment, tmp_path), data, "joint_r8", seed=1)
        found = read_checkpoint(folder)
        assert folder == tmp_path / "joint_r8" / "seed_1" / "checkpoint"
        assert (found.arm, found.seed, found.which, found.dtype) == ("joint_r8", 1, "last", "float32")
        assert found.base_model.startswith("tiny-model@")
        assert (found.training.steps, found.training.ranking_examples, found.training.embedding_examples) == (6, 12, 24)

    def test_log_has_a_line_per_step_and_both_losses(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        lines = log(train(placed(experiment, tmp_path), data, "joint_r8"))
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        for line in lines:
            assert line["loss"] == pytest.approx(0.5 * line["ranking_loss"] + 0.5 * line["embedding_loss"])
            assert line["tokens_per_s"] > 0

    def test_adapter_is_changed_by_training_and_below_it_nothing(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        weights = safetensors.torch.load_file(train(placed(experiment, tmp_path), data, "rank_only_r8") / ADAPTER_FILE)
        layers = {int(name.split("layers.")[1].split(".")[0]) for name in weights}
        assert layers == {2, 3}
        assert all(weight.dtype == torch.float32 for weight in weights.values())
        assert any(bool(weight.abs().max() > 0) for name, weight in weights.items() if "lora_B" in name)

    def test_checkpoint_loads_into_a_model_that_scores_otherwise_than_the_base(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        folder = train(placed(experiment, tmp_path), data, "rank_only_r8")
        loader = ModelLoader(experiment, CPU, torch.float32)
        pairs = [("norm of a vector", "Return one of eight matrix norms."), ("sort", "Return a sorted copy.")]
        assert abs(loader.trained(folder).rerank(pairs) - loader.zero_shot().rerank(pairs)).max() > 1e-4


class TestFairArms:
    def test_joint_sees_what_its_specialists_see(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)
        budgets = {arm: read_checkpoint(train(here, data, arm)).training for arm in experiment.arms}
        rank, embed, joint = budgets["rank_only_r8"], budgets["emb_only_r8"], budgets["joint_r8"]
        assert joint.ranking_examples == rank.ranking_examples
        assert joint.embedding_examples == embed.embedding_examples
        assert joint.tokens == rank.tokens + embed.tokens
        assert joint.steps == rank.steps == embed.steps

    def test_first_losses_are_equal_as_the_first_batches_are(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)
        first = {arm: log(train(here, data, arm))[0] for arm in experiment.arms}
        assert first["joint_r8"]["ranking_loss"] == first["rank_only_r8"]["ranking_loss"]
        assert first["joint_r8"]["embedding_loss"] == first["emb_only_r8"]["embedding_loss"]

    def test_seeds_differ(self, experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
        here = placed(experiment, tmp_path)
        hashes = {read_checkpoint(train(here, data, "rank_only_r8", seed)).adapter_hash for seed in (0, 1)}
        assert len(hashes) == 2


class TestResume:
    def test_finished_training_is_kept(self, experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
        here = placed(experiment, tmp_path)
        folder = train(here, data, "rank_only_r8")
        before = (folder / ADAPTER_FILE).stat().st_mtime_ns
        train(here, data, "rank_only_r8", die_after=1)
        assert (folder / ADAPTER_FILE).stat().st_mtime_ns == before

    def test_checkpoint_of_another_training_is_refused(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)
        train(here, data, "rank_only_r8")
        other = here.model_copy(update={"training": here.training.model_copy(update={"steps": 7})})
        with pytest.raises(DataError, match="is of another training"):
            train(other, data, "rank_only_r8")

    def test_state_of_another_training_is_refused(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)
        with pytest.raises(KilledError):
            train(here, data, "rank_only_r8", die_after=3)
        other = here.model_copy(update={"training": here.training.model_copy(update={"steps": 7})})
        with pytest.raises(DataError, match="is of another training"):
            train(other, data, "rank_only_r8")

    def test_damaged_state_is_refused(self, experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
        here = placed(experiment, tmp_path)
        with pytest.raises(KilledError):
            train(here, data, "rank_only_r8", die_after=3)
        state = tmp_path / "rank_only_r8" / "seed_0" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:100])
        with pytest.raises(DataError, match="damaged training state"):
            train(here, data, "rank_only_r8")


class TestBadTraining:
    def test_loss_that_is_not_finite_stops_with_arm_seed_and_step(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = placed(experiment, tmp_path)
        arms = {name: arm.model_copy(update={"learning_rate": 1e30}) for name, arm in here.arms.items()}
        with pytest.raises(DataError, match=r"rank_only_r8, seed 0, step \d: .*lower the arm's learning_rate"):
            train(here.model_copy(update={"arms": arms}), data, "rank_only_r8")
        assert not (tmp_path / "rank_only_r8" / "seed_0" / "checkpoint").exists()

    def test_half_written_checkpoint_is_named(self, experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
        here = placed(experiment, tmp_path)
        folder = train(here, data, "rank_only_r8")
        (folder / ADAPTER_FILE).unlink()
        with pytest.raises(DataError, match="not a whole checkpoint"):
            train(here, data, "rank_only_r8")

    def test_manifest_round_trips(self, experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
        folder = train(placed(experiment, tmp_path / "a"), data, "rank_only_r8")
        shutil.copytree(folder, tmp_path / "copy")
        assert isinstance(read_checkpoint(tmp_path / "copy"), Checkpoint)
        assert read_checkpoint(folder).experiment == placed(experiment, tmp_path / "a")
