"""Training as people expect it: what it leaves, fair arms, best on dev, accumulation, trackers, and clear errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast, get_args
from unittest.mock import patch

import pytest
import safetensors.torch
import torch
from support.experiments import tiny_experiment, tiny_experiment_dict
from support.scripts import call_script, successful
from support.trainings import CPU, KilledError, Scorer, of_the_weights, train

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.config.training import AggregationName
from unimoe.core.errors import DataError
from unimoe.evaluation.dev_eval import DevEvaluation
from unimoe.experiment.training_job import train_by_worker
from unimoe.models.batched import BatchedDecoder
from unimoe.models.checkpoint import ADAPTER_FILE, MANIFEST, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results.logs import read_conflict_logs
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.trainer import ArmTraining, DevScorer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def data(experiment: Experiment) -> TrainingData:
    return load_training_data(experiment)


def changed(experiment: Experiment, folder: Path, *overrides: str) -> Experiment:
    return parse_config(
        Experiment, overridden(experiment.model_dump(), [f"output_dir={folder}", *overrides]), source="tiny"
    )


def log(checkpoint: Path, name: str = "train.jsonl") -> list[dict[str, Any]]:
    lines = (checkpoint.parent / "logs" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(checkpoint / ADAPTER_FILE)


def differing(one: Path, other: Path) -> list[str]:
    there = weights(other)
    return [name for name, weight in weights(one).items() if not torch.equal(weight, there[name])]


def scripted(scores: list[float]) -> DevScorer:
    """Says what it is told, whatever the model."""
    values: Iterator[float] = iter(scores)
    return Scorer(lambda model: next(values))


@pytest.fixture(scope="module")
def trained(experiment: Experiment, data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every arm of the experiment, trained once."""
    here = changed(experiment, tmp_path_factory.mktemp("trained"))
    return {arm: train(here, data, arm) for arm in here.arms}


def test_a_checkpoint_says_where_it_came_from_and_the_log_has_a_line_per_step(
    experiment: Experiment, trained: dict[str, Path]
) -> None:
    folder = trained["joint_r8"]
    found = read_checkpoint(folder)
    assert folder.parts[-3:] == ("joint_r8", "seed_0", "checkpoint")
    assert (found.arm, found.seed, found.which, found.dtype) == ("joint_r8", 0, "last", "float32")
    assert found.base_model.startswith("tiny-model@")
    assert (found.training.steps, found.training.ranking_examples, found.training.embedding_examples) == (6, 12, 24)
    assert found.experiment == changed(experiment, folder.parents[2])
    lines = log(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["loss"] == pytest.approx(0.5 * line["ranking_loss"] + 0.5 * line["embedding_loss"])
        assert line["tokens_per_s"] > 0


def test_the_joint_arm_sees_what_its_specialists_see(trained: dict[str, Path]) -> None:
    budgets = {arm: read_checkpoint(folder).training for arm, folder in trained.items()}
    rank, embed, joint = budgets["rank_only_r8"], budgets["emb_only_r8"], budgets["joint_r8"]
    assert (joint.ranking_examples, joint.embedding_examples) == (rank.ranking_examples, embed.embedding_examples)
    assert joint.tokens == rank.tokens + embed.tokens
    assert joint.steps == rank.steps == embed.steps
    first = {arm: log(folder)[0] for arm, folder in trained.items()}
    assert first["joint_r8"]["ranking_loss"] == first["rank_only_r8"]["ranking_loss"]
    assert first["joint_r8"]["embedding_loss"] == first["emb_only_r8"]["embedding_loss"]


def test_a_worker_trains_again_what_a_killed_driver_copied_in_part(
    experiment: Experiment, data: TrainingData, tmp_path: Path
) -> None:
    here = changed(experiment, tmp_path)
    last = train(here, data)
    (last / MANIFEST).unlink()
    training = ArmTraining(here, "rank_only_r8", 0, ModelLoader(here, CPU, torch.float32), data)
    with patch("unimoe.experiment.training_job.done_by_worker", return_value=[2.0, 1.0]):
        assert train_by_worker(cast("Any", None), training) == [2.0, 1.0]
    assert not last.exists()


def test_a_finished_training_is_kept_and_another_config_refused_by_its_first_difference(
    experiment: Experiment, data: TrainingData, trained: dict[str, Path], tmp_path: Path
) -> None:
    folder = trained["rank_only_r8"]
    before, here = (folder / ADAPTER_FILE).stat().st_mtime_ns, read_checkpoint(folder).experiment
    with patch.object(ModelLoader, "fresh_base", side_effect=AssertionError("a finished training loads no model")):
        train(here, data, "rank_only_r8", die_after=1)
    assert (folder / ADAPTER_FILE).stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"learning_rate was 0\.01 there and is 0.5 here"):
        train(changed(here, Path(here.output_dir), "arms.rank_only_r8.learning_rate=0.5"), data)
    with pytest.raises(KilledError):
        train(changed(experiment, tmp_path), data, die_after=3)
    with pytest.raises(DataError, match=r"training\.schedule was 'linear' there and is 'cosine' here"):
        train(changed(experiment, tmp_path, "training.schedule=cosine"), data)


def test_the_best_on_dev_stands_beside_the_last(experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
    here = changed(experiment, tmp_path, "training.evaluate_every=2")
    last = train(here, data, score_on_dev=scripted([0.1, 0.3, 0.2]))
    best = last.with_name("checkpoint-best")
    assert [line["dev_score"] for line in log(last, "dev.jsonl")] == [0.1, 0.3, 0.2]
    found = [read_checkpoint(folder) for folder in (last, best)]
    seen = [(one.which, one.training.steps, one.training.ranking_examples) for one in found]
    assert seen == [("last", 6, 12), ("best", 4, 8)]
    assert differing(best, last)


def test_evaluations_change_nothing_in_the_training(
    experiment: Experiment, data: TrainingData, trained: dict[str, Path], tmp_path: Path
) -> None:
    here = changed(experiment, tmp_path, "training.evaluate_every=1", "training.dev.queries=4")
    scored = train(here, data, score_on_dev=DevEvaluation(here, "rank_only_r8"))
    assert not differing(trained["rank_only_r8"], scored)
    assert all(0 <= line["reranking/ndcg@10"] <= 1 for line in log(scored, "dev.jsonl"))


def test_an_arm_may_have_a_loss_of_its_own(experiment: Experiment, data: TrainingData, tmp_path: Path) -> None:
    """It trains as it would if all arms shared that loss, and its card names it."""
    options = ("training.steps=3", "training.ranking.loss=softmax")
    shared = changed(experiment, tmp_path / "shared", "training.steps=3", "training.ranking.loss=plistmle")
    own = changed(experiment, tmp_path / "own", *options, "arms.rank_only_r8.loss=plistmle")
    other = changed(experiment, tmp_path / "other", *options)
    found = [read_checkpoint(train(config, data)) for config in (own, shared, other)]
    assert found[0].adapter_hash == found[1].adapter_hash != found[2].adapter_hash
    card = tmp_path / "own" / "rank_only_r8" / "seed_0" / "checkpoint" / "README.md"
    assert '"name": "plistmle"' in card.read_text(encoding="utf-8")
    binary = copy.copy(data)
    binary.ranking = lambda model: replace(data.ranking(model), labels=[[1.0, 0.0]] * 9)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="loss marginmse needs graded labels"):
        train(changed(experiment, tmp_path / "no", "arms.rank_only_r8.loss=marginmse"), binary)


def test_activation_checkpointing_ends_with_the_same_weights(
    experiment: Experiment, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedDecoder, "trains_trees", False)  # trees drop other units
    plain = train(changed(experiment, tmp_path / "plain", "lora.dropout=0.3"), data, "joint_r8")
    options = ("lora.dropout=0.3", "training.activation_checkpointing=true")
    assert not differing(plain, train(changed(experiment, tmp_path / "less", *options), data, "joint_r8"))


class TestNotFinite:
    def test_it_names_step_and_queries_and_keeps_what_was_saved(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        here = changed(
            experiment, tmp_path, "training.save_every=1", "training.evaluate_every=1", "training.schedule=constant",
            "training.warmup_steps=0", "arms.rank_only_r8.learning_rate=1e30",
        )  # fmt: skip
        with pytest.raises(
            DataError, match=r"rank_only_r8, seed 0, step (\d): the .* is (nan|inf|-inf); its"
        ) as caught:
            train(here, data, score_on_dev=scripted([0.5] * 6))
        loader = ModelLoader(here, CPU, torch.float32)
        known = data.ranking(loader.zero_shot()).query_ids
        named = str(caught.value).partition("its queries are ")[2].partition(";")[0].split(", ")
        assert len(named) == 2
        assert set(named) <= set(known)
        folder = tmp_path / "rank_only_r8" / "seed_0"
        assert (folder / "state.safetensors").exists()
        assert read_checkpoint(folder / "checkpoint-best").training.steps == 1
        assert not (folder / "checkpoint").exists()


class TestTracking:
    def test_tensorboard_holds_what_the_log_holds(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path
    ) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        here = changed(experiment, tmp_path, "training.tracking=[tensorboard]", "training.evaluate_every=3")
        with pytest.raises(KilledError):
            train(here, data, die_after=5, score_on_dev=of_the_weights)
        last = train(here, data, score_on_dev=of_the_weights)
        events = EventAccumulator(str(last.parent / "logs" / "tensorboard"))
        events.Reload()
        shown = {event.step: event.value for event in events.Scalars("loss")}
        assert shown == pytest.approx({line["step"]: line["loss"] for line in log(last)}, rel=1e-6)
        assert [event.step for event in events.Scalars("dev_score")] == [3, 6]

    def test_wandb_needs_no_network_offline(
        self, experiment: Experiment, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WANDB_MODE", "offline")
        last = train(changed(experiment, tmp_path, "training.tracking=[wandb]"), data)
        runs = list((last.parent / "logs" / "wandb").glob("offline-run-*/*.wandb"))
        assert len(runs) == 1
        assert b"ranking_loss" in runs[0].read_bytes()


class TestScripts:
    def test_a_joint_arm_is_scored_on_dev_and_either_checkpoint_can_be_evaluated(self, tmp_path: Path) -> None:
        from support.experiments import write_tiny_experiment

        config, output_dir = write_tiny_experiment(tmp_path), tmp_path / "outputs"
        options = ["training.evaluate_every=3", "training.dev={queries: 5, depth: 3, pool: 40}"]
        overrides = [word for option in options for word in ("--set", option)]
        done = successful(call_script("train.py", "--config", config, "--arm", "joint_r8", *overrides))
        folder = output_dir / "joint_r8" / "seed_0"
        assert done.stdout.strip() == str(folder / "checkpoint")
        for line in log(folder / "checkpoint", "dev.jsonl"):
            parts = [line["reranking/ndcg@10"], line["embedding/ndcg@10"]]
            assert line["dev_score"] == pytest.approx(sum(parts) / 2)
        successful(call_script("evaluate.py", "--checkpoint", folder / "checkpoint-best", "--task", "reranking"))
        result = json.loads((folder / "results" / "reranking" / "apidocs.json").read_text(encoding="utf-8"))
        assert result["identity"]["checkpoint"] == "best"
        other = call_script("evaluate.py", "--checkpoint", folder / "checkpoint", "--task", "reranking")
        assert other.returncode == 3  # the first stage's own result has been printed by then
        assert "holds another evaluation (checkpoint 'best' there, 'last' here)" in other.stderr
        elsewhere = ["--output-dir", str(tmp_path / "last")]
        successful(call_script("evaluate.py", "--checkpoint", folder / "checkpoint", "--task", "reranking", *elsewhere))


AGGREGATIONS = get_args(AggregationName)
STEPS, INTERVAL = 4, 2


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny_experiment_dict(tmp_path_factory.mktemp("joint"))


@pytest.fixture(scope="module")
def joint_data(raw: dict[str, Any]) -> TrainingData:
    return load_training_data(parse_config(Experiment, raw, source="tiny"))


def joint_experiment(
    raw: dict[str, Any], folder: Path, *, conflicts: dict[str, Any] | None = None, dropout: float = 0.0, **arm: Any
) -> Experiment:
    training = raw["training"] | {"conflicts": conflicts or {"interval": INTERVAL}, "steps": STEPS, "save_every": 2}
    joint = {"task": "joint", "learning_rate": 1e-2, "ranking_weight": 0.4, "gradvac_beta": 0.5, **arm}
    changed = {"output_dir": str(folder), "training": training, "arms": {"joint_r8": joint}}
    return parse_config(Experiment, raw | changed | {"lora": raw["lora"] | {"dropout": dropout}}, source="tiny")


def conflict_log(checkpoint: Path) -> Path:
    return checkpoint.parent / "logs" / "gradient_conflicts.jsonl"


@pytest.fixture(scope="module")
def undisturbed(
    raw: dict[str, Any], joint_data: TrainingData, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return {
        name: train(joint_experiment(raw, folder / name, aggregation=name), joint_data, "joint_r8")
        for name in AGGREGATIONS
    }


def test_every_method_ends_elsewhere(undisturbed: dict[str, Path]) -> None:
    ends = {name: safetensors.torch.load_file(folder / ADAPTER_FILE) for name, folder in undisturbed.items()}
    flat = {name: torch.cat([weight.flatten() for weight in end.values()]) for name, end in ends.items()}
    assert all(bool(end.isfinite().all()) for end in flat.values())
    for first, second in combinations(sorted(flat), 2):
        assert float((flat[first] - flat[second]).abs().max()) > 3e-4, (first, second)


def test_the_record_changes_no_weight(raw: dict[str, Any], joint_data: TrainingData, tmp_path: Path) -> None:
    hashes = set()
    for name, settings in (("with", {"interval": 1}), ("without", {"measure": False})):
        config = joint_experiment(raw, tmp_path / name, aggregation="gradvac", dropout=0.3, conflicts=settings)
        checkpoint = train(config, joint_data, "joint_r8")
        hashes.add(read_checkpoint(checkpoint).adapter_hash)
        assert conflict_log(checkpoint).exists() == (name == "with")
    assert len(hashes) == 1


def test_the_record_has_a_line_per_measured_step_and_layer(undisturbed: dict[str, Path]) -> None:
    for name, checkpoint in undisturbed.items():
        records = read_conflict_logs(checkpoint.parents[2])["joint_r8", 0]
        places = [(record.step, record.layer) for record in records]
        assert places == [(step, layer) for step in (1, 3) for layer in (2, 3)], name
        for record in records:
            assert record.cosine is not None
            assert -1 <= record.cosine <= 1
            assert min(record.norm_rank or 0, record.norm_embed or 0) > 0
