"""Training as people expect it: what it leaves, fair arms, best on dev; also where it is resumed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any, cast, get_args
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from support.experiments import CPU, KilledError, Scorer, changed, of_the_weights, tiny_experiment, train

from unimoe.config import Experiment
from unimoe.config.training import AggregationName
from unimoe.core.errors import DataError
from unimoe.evaluation.dev_eval import DevEvaluation
from unimoe.experiment.training_job import train_by_worker
from unimoe.models.batched import BatchedDecoder
from unimoe.models.checkpoint import ADAPTER_FILE, MANIFEST, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import TrainingBudget
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


@pytest.fixture
def trained_in(experiment: Experiment, data: TrainingData, tmp_path: Path) -> Callable[..., Path]:
    """Trains an arm of the experiment in a folder, with other settings, and returns its checkpoint."""

    def made(folder: str, *overrides: str, arm: str = "rank_only_r8", **options: Any) -> Path:
        return train(changed(experiment, tmp_path / folder, *overrides), data, arm, **options)

    return made


def log(checkpoint: Path, name: str = "train.jsonl") -> list[dict[str, Any]]:
    lines = (checkpoint.parent / "logs" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def weights_hash(checkpoint: Path) -> str:
    return read_checkpoint(checkpoint).adapter_hash


def scripted(scores: list[float]) -> DevScorer:
    """Says what it is told, whatever the model."""
    values = iter(scores)
    return Scorer(lambda model: next(values))


@pytest.fixture(scope="module")
def trained(experiment: Experiment, data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every arm of the experiment, trained once."""
    here = changed(experiment, tmp_path_factory.mktemp("trained"))
    return {arm: train(here, data, arm) for arm in here.arms}


def test_a_checkpoint_says_where_it_came_from_and_the_joint_arm_sees_what_its_specialists_see(
    experiment: Experiment, trained: dict[str, Path]
) -> None:
    folder = trained["joint_r8"]
    found = read_checkpoint(folder)
    assert folder.parts[-3:] == ("joint_r8", "seed_0", "checkpoint")
    assert (found.arm, found.seed, found.which, found.dtype) == ("joint_r8", 0, "last", "float32")
    assert found.base_model.startswith("tiny-model@")
    assert (found.training.steps, found.training.ranking_examples, found.training.embedding_examples) == (6, 12, 24)
    assert found.recorded == changed(experiment, folder.parents[2])
    lines = log(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["loss"] == pytest.approx(0.5 * line["ranking_loss"] + 0.5 * line["embedding_loss"])
        assert line["tokens_per_s"] > 0
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


def test_a_finished_training_loads_no_model_and_another_is_refused_by_its_first_difference(
    trained_in: Callable[..., Path],
) -> None:
    trained_in("out", "training.steps=2")
    with patch.object(ModelLoader, "fresh_base", side_effect=AssertionError("a finished training loads no model")):
        trained_in("out", "training.steps=2")
    with pytest.raises(DataError, match=r"steps was 2 there and is 6 here"):
        trained_in("out")
    with pytest.raises(KilledError):
        trained_in("other", die_after=3)
    with pytest.raises(DataError, match=r"training\.schedule was 'linear' there and is 'cosine' here"):
        trained_in("other", "training.schedule=cosine")


def test_the_best_on_dev_stands_beside_the_last(trained_in: Callable[..., Path]) -> None:
    last = trained_in("out", "training.evaluate_every=2", score_on_dev=scripted([0.0, 0.1, 0.3, 0.2]))
    assert [(line["step"], line["dev_score"]) for line in log(last, "dev.jsonl")] == [
        (0, 0),
        (2, 0.1),
        (4, 0.3),
        (6, 0.2),
    ]
    found = [read_checkpoint(folder) for folder in (last, last.with_name("checkpoint-best"))]
    seen = [(one.which, one.training.steps, one.training.ranking_examples) for one in found]
    assert seen == [("last", 6, 12), ("best", 4, 8)]
    assert found[0].adapter_hash != found[1].adapter_hash


def test_an_arm_that_no_step_makes_better_keeps_its_start(trained_in: Callable[..., Path]) -> None:
    last = trained_in("out", "training.evaluate_every=3", score_on_dev=scripted([0.4, 0.3, 0.4]))
    best = last.with_name("checkpoint-best")
    assert read_checkpoint(best).training == TrainingBudget(steps=0, ranking_examples=0, embedding_examples=0, tokens=0)
    ends = [load_file(folder / ADAPTER_FILE) for folder in (best, last)]
    assert [any(bool(end[name].any()) for name in end if "lora_B" in name) for end in ends] == [False, True]


def test_a_start_counts_for_patience(trained_in: Callable[..., Path]) -> None:
    options = ("training.evaluate_every=1", "training.patience=2")
    last = trained_in("out", *options, score_on_dev=scripted([0.4, 0.3, 0.2]))
    assert read_checkpoint(last).training.steps == 2


@pytest.mark.parametrize(("arm", "tasks"), [("rank_only_r8", ["reranking"]), ("joint_r8", ["reranking", "embedding"])])
def test_scores_on_dev_are_means_over_tasks_and_change_nothing_in_the_training(
    experiment: Experiment, data: TrainingData, trained: dict[str, Path], tmp_path: Path, arm: str, tasks: list[str]
) -> None:
    here = changed(experiment, tmp_path, "training.evaluate_every=3", "training.dev={queries: 5, depth: 3, pool: 40}")
    scored = train(here, data, arm, score_on_dev=DevEvaluation(here, arm))
    assert weights_hash(trained[arm]) == weights_hash(scored)
    for line in log(scored, "dev.jsonl"):
        assert line["dev_score"] == pytest.approx(fmean(line[f"{task}/ndcg@10"] for task in tasks))


def test_the_queries_that_choose_belong_to_the_training_and_neither_train_nor_are_reported(
    experiment: Experiment, data: TrainingData, tmp_path: Path
) -> None:
    choosing = changed(experiment, tmp_path, "training.evaluate_every=2")
    assert load_training_data(choosing).content_hash != data.content_hash
    with pytest.raises(DataError, match=r"is in training\.dev and in evaluation\.bundled; choose splits that differ"):
        load_training_data(changed(choosing, tmp_path, "evaluation.bundled.split=dev"))
    with pytest.raises(DataError, match=r"is in training\.split and in training\.dev; choose splits that differ"):
        load_training_data(changed(choosing, tmp_path, "training.dev.split=train"))


def test_an_arm_may_have_a_loss_of_its_own(
    experiment: Experiment, data: TrainingData, trained_in: Callable[..., Path], tmp_path: Path
) -> None:
    """It trains as it would if all arms shared that loss, and its card names it."""
    options = ("training.steps=3", "training.ranking.loss=softmax")
    own = trained_in("own", *options, "arms.rank_only_r8.loss=plistmle")
    shared = trained_in("shared", "training.steps=3", "training.ranking.loss=plistmle")
    assert weights_hash(own) == weights_hash(shared) != weights_hash(trained_in("other", *options))
    assert '"name": "plistmle"' in (own / "README.md").read_text(encoding="utf-8")
    binary = copy.copy(data)
    binary.ranking = lambda model: replace(data.ranking(model), labels=[[1.0, 0.0]] * 9)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="loss marginmse needs graded labels"):
        train(changed(experiment, tmp_path, "arms.rank_only_r8.loss=marginmse"), binary)


def test_activation_checkpointing_ends_with_the_same_weights(
    trained_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedDecoder, "trains_trees", False)  # trees drop other units
    options = ("training.steps=2", "lora.dropout=0.3")
    plain = trained_in("plain", *options, arm="joint_r8")
    less = trained_in("less", *options, "training.activation_checkpointing=true", arm="joint_r8")
    assert weights_hash(plain) == weights_hash(less)


def test_a_loss_that_is_not_finite_names_step_and_queries_and_keeps_what_was_saved(
    experiment: Experiment, data: TrainingData, tmp_path: Path
) -> None:
    here = changed(experiment, tmp_path, "training.save_every=1", "training.evaluate_every=1")
    loader = ModelLoader(here, CPU, torch.float32)
    training = ArmTraining(here, "rank_only_r8", 0, loader, data, scripted([0.4, *[0.5] * 6]))

    def spoil(step: int, _: object) -> None:
        if step == 2:
            next(iter(training._weights.values())).data.fill_(float("nan"))

    with pytest.raises(DataError, match=r"rank_only_r8, seed 0, step 3: the loss is nan; its") as caught:
        training.run(spoil)
    known = data.ranking(loader.zero_shot()).query_ids
    named = str(caught.value).partition("its queries are ")[2].partition(";")[0].split(", ")
    assert len(named) == 2
    assert set(named) <= set(known)
    assert training.state.path.exists()
    assert read_checkpoint(training.best).training.steps == 1
    assert not training.last.exists()


DIVERGING = ("training.schedule=constant", "training.warmup_steps=0", "arms.rank_only_r8.learning_rate=1e30")


@pytest.mark.parametrize("steps", [1, 3])  # a last step is followed by no loss that would show it
def test_a_rate_beyond_reason_ends_an_arm_with_a_word(
    trained_in: Callable[..., Path], tmp_path: Path, steps: int
) -> None:
    with pytest.raises(DataError, match=r"step 1: the weights overflow; its queries are .*; lower the arm's learning_"):
        trained_in("out", f"training.steps={steps}", *DIVERGING)
    assert not [*tmp_path.rglob("adapter_model.safetensors")]


def test_tensorboard_holds_what_the_log_holds_and_wandb_needs_no_network(
    trained_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "wandb"):
        pytest.importorskip(name, reason=f"needs {name}: uv sync --group readers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_MODE", "offline")
    options = ("training.evaluate_every=3", "training.tracking=[tensorboard]")
    with pytest.raises(KilledError):
        trained_in("out", *options, die_after=5, score_on_dev=of_the_weights)
    last = trained_in("out", *options, "training.tracking=[tensorboard, wandb]", score_on_dev=of_the_weights)
    logs = last.parent / "logs"
    events = EventAccumulator(str(logs / "tensorboard"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("loss")}
    assert shown == pytest.approx({line["step"]: line["loss"] for line in log(last)}, rel=1e-6)
    assert [event.step for event in events.Scalars("dev_score")] == [0, 3, 6]
    runs = [path.read_bytes() for path in (logs / "wandb").glob("offline-run-*/*.wandb")]
    assert any(b"ranking_loss" in run for run in runs)


def test_every_aggregation_ends_elsewhere_and_its_record_of_conflicts_changes_no_weight(
    trained_in: Callable[..., Path],
) -> None:
    # Each method needs settings that it makes much of. Adam ignores a factor that both losses share, so the learned
    # weights have to part; and GradVac takes PCGrad's steps while its running mean is near 0.
    joint = ("ranking_weight=0.2", "uncertainty_learning_rate=0.5", "gradvac_beta=0.9")
    options = ("training.steps=4", "lora.dropout=0.3", *(f"arms.joint_r8.{setting}" for setting in joint))

    def weights(checkpoint: Path) -> torch.Tensor:
        return torch.cat([weight.flatten() for weight in load_file(checkpoint / ADAPTER_FILE).values()])

    ends = {}
    for name in get_args(AggregationName):
        own = (f"arms.joint_r8.aggregation={name}", "training.conflicts.interval=1")
        checkpoint = trained_in(name, *options, *own, arm="joint_r8")
        ends[name] = weights(checkpoint)
        assert bool(ends[name].isfinite().all())
        records = read_conflict_logs(checkpoint.parents[2])["joint_r8", 0]
        assert [(record.step, record.layer) for record in records] == list(product(range(1, 5), (2, 3))), name
        for record in records:
            assert record.cosine is not None
            assert -1 <= record.cosine <= 1
            assert min(record.norm_rank or 0, record.norm_embed or 0) > 0
    for first, second in combinations(sorted(ends), 2):
        apart = float((ends[first] - ends[second]).norm() / ends[first].norm())
        assert apart > 1e-3, (first, second)  # they are .02 apart; the rounding of two processors, 2e-5
    own = ("arms.joint_r8.aggregation=gradvac", "training.conflicts.measure=false")
    unrecorded = trained_in("unrecorded", *options, *own, arm="joint_r8")
    assert not (unrecorded.parent / "logs" / "gradient_conflicts.jsonl").exists()
    assert torch.equal(weights(unrecorded), ends["gradvac"])
