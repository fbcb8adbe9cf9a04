"""Every kind of training: killed and resumed, tracked, and ended by a word where it overflows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.caption_pairs import small_config, small_split
from support.experiments import CPU, KilledError, changed, kill_after, of_the_weights, tiny_experiment
from support.studies import cross_encoder_config, topics_folder, toy_config, toy_data, toy_training
from support.tiny_models import save_tiny_encoder

from unimoe.analysis.figures.style import looks
from unimoe.analysis.figures.training import loss_figure
from unimoe.core.errors import DataError
from unimoe.models.loader import ModelLoader
from unimoe.results.logs import read_logs
from unimoe.studies.cross_encoder.data import load_cross_encoder_data
from unimoe.studies.cross_encoder.trainer import CrossEncoderTraining
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.trainer import HeadTrainer
from unimoe.studies.translator.training.trainer import TranslatorTrainer
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.loop import Training
from unimoe.training.trainer import ArmTraining

pytestmark = pytest.mark.usefixtures("one_thread")

KILLS = 10
Make = Callable[[Path, Path], Training]
"""Makes a training: of data in one folder, with its outputs in another."""


def arm(name: str, *settings: str) -> Make:
    @cache
    def examples_in(data: Path) -> TrainingData:
        return load_training_data(changed(tiny_experiment(data), data, *settings))

    def make(data: Path, out: Path) -> Training:
        experiment = changed(tiny_experiment(data), out, *settings)
        loader = ModelLoader(experiment, CPU, torch.float32)
        return ArmTraining(experiment, name, 0, loader, examples_in(data), of_the_weights)

    return make


def head(data: Path, out: Path, **changes: Any) -> Training:
    config = toy_config(data / "topics", out, **{"learning_rate": 1e-3, **changes})
    return HeadTrainer(TrainConfig.model_validate(config.model_dump()), toy_data(config))


def biencoder(data: Path, out: Path, **changes: Any) -> Training:
    return toy_training(data, **changes, output_dir=str(out))


def cross_encoder(data: Path, out: Path, **changes: Any) -> Training:
    config = cross_encoder_config(data / "cross_encoder", data / "lists", out, **changes)
    return CrossEncoderTraining(config, load_cross_encoder_data(config), CPU)


def translator(data: Path, out: Path, **changes: Any) -> Training:
    return TranslatorTrainer(small_config(out, **changes), *small_split())


EVERYTHING = (
    "training.evaluate_every=1", "training.patience=3", "training.schedule=onecycle", "training.warmup_steps=2",
    "training.steps=8", "training.accumulation_steps=2", "lora.dropout=0.2",
)  # fmt: skip
RECIPE = {"sigma_is": "absolute", "optimizer": "sgd", "adaptive_sigma": True, "seed_scale": True, "max_norm": 1.0}
HEADS: dict[str, dict[str, Any]] = {
    "eggroll": {"method": "eggroll"},
    "the original's recipe": {"method": "eggroll", "sigma": 0.02} | RECIPE,
    "score_es": {"method": "score_es"},
    "genetic": {"method": "genetic", "genetic": {"individuals": 6}},
    "hybrid": {"method": "hybrid", "handoff": 5, "precision": "fp4"},
    "infonce": {"method": "infonce"},
    "pg_rank": {"method": "pg_rank", "optimizer": "sgd", "weight_decay": 0.01, "max_norm": 1.0},
}
BIENCODERS: dict[str, dict[str, Any]] = {
    "chunks": {"chunk_size": 3, "accumulation": 3, "schedule": "onecycle", "loss": {"symmetric": False}},
    "negatives": {"negatives": {"per_query": 1, "depth": 6, "refresh_every": 1}, "out_dim": None},
    "bfloat16": {"precision": "bfloat16", "epochs": 1, "save_every": 2},
    "lora": {"lora": {"rank": 4, "dropout": 0.2}, "save_every": 1},
    "frozen": {"freeze_base": True, "negatives": {"per_query": 1, "depth": 6, "source": "model"}, "save_every": 1},
}
CROSS_ENCODERS: dict[str, dict[str, Any]] = {
    "shuffled": {"loss": {"name": "listmle", "respect_input_order": False, "ties": "shuffle"}},
    "sampled": {"loss": {"name": "score_es", "directions": 8, "sigma_end": 0.2}},
    "lora": {"lora": {"target_modules": "all-linear", "dropout": 0.2}},
}
KINDS: dict[str, Make] = {
    "joint arm": arm("joint_r8"),
    "joint arm by gradvac": arm("joint_r8", "arms.joint_r8.aggregation=gradvac"),
    "joint arm by uncertainty": arm("joint_r8", "arms.joint_r8.aggregation=uncertainty"),
    "arm with dev, dropout and accumulation": arm("rank_only_r8", *EVERYTHING),
    "arm by score_es": arm("rank_only_r8", "training.ranking.loss=score_es", "training.ranking.loss.sigma_end=0.1"),
    **{f"head by {name}": partial(head, **changes) for name, changes in HEADS.items()},
    **{f"bi-encoder, {name}": partial(biencoder, **changes) for name, changes in BIENCODERS.items()},
    **{f"cross-encoder, {name}": partial(cross_encoder, **changes) for name, changes in CROSS_ENCODERS.items()},
    **{f"translator {name}": partial(translator, model=name) for name in ("bigjump", "ridge_adapter")},
}


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what trainings read, where they do not make it."""
    folder = tmp_path_factory.mktemp("data")
    topics_folder(folder / "topics")
    topics_folder(folder / "lists", {"train": 24, "dev": 6, "test": 6})
    save_tiny_encoder(folder / "cross_encoder")
    return folder


def assert_close(found: Any, expected: Any) -> None:
    """Compare records, whatever they took; and numbers to 1e-6."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"seconds", "tokens_per_s"}:
            assert_close(found[name], expected[name])
    else:
        assert found == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("make", [head, biencoder, cross_encoder, translator])
def test_every_kind_of_training_is_tracked_and_has_a_curve_in_the_report(
    make: Callable[..., Training], of_all: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: uv sync --group readers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = make(of_all, tmp_path, tracking=["tensorboard"])
    assert training.state.fingerprint == make(of_all, tmp_path).state.fingerprint
    training.run()
    events = EventAccumulator(str(training.state.logs / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert len(losses) == training.progress.step
    assert bool(torch.tensor(losses).isfinite().all())
    logs = read_logs(tmp_path)
    assert len(logs) == 1
    figure = loss_figure(logs, looks([name for name, _ in logs]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["training loss"]


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_ends_where_an_undisturbed_one_does(kind: str, of_all: Path, tmp_path: Path) -> None:
    whole = KINDS[kind](of_all, tmp_path / "whole")
    whole.run()
    last = whole.progress.step
    moments = sorted(random.Random(kind).sample(range(1, last + 1), min(KILLS, last)))
    for moment in moments:
        killed = KINDS[kind](of_all, tmp_path / "killed")
        with pytest.raises(KilledError):
            killed.run(kill_after(moment))
        assert not killed.is_finished()
    taken: list[int] = []
    resumed = KINDS[kind](of_all, tmp_path / "killed")
    resumed.run(lambda step, _: taken.append(step))
    assert taken == [*range(last - len(taken) + 1, last + 1)], "no step is left out or taken twice"
    assert not resumed.state.path.exists()
    for path in whole.state.folder.rglob("*.safetensors"):
        expected, found = load_file(path), load_file(resumed.state.folder / path.relative_to(whole.state.folder))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
    logs = sorted(path.name for path in whole.state.logs.iterdir())
    assert logs == sorted(path.name for path in resumed.state.logs.iterdir())
    for name in logs:
        lines = [(t.state.logs / name).read_text("utf-8").splitlines() for t in (resumed, whole)]
        for line, other in zip(*lines, strict=True):
            assert_close(json.loads(line), json.loads(other))


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        ("biencoder", {"learning_rate": 1e30}, "biencoder, seed 0, step 1: the weights overflow in the batch of"),
        ("biencoder", {"learning_rate": 1e30, "freeze_base": True}, "step 1: the weights overflow in the batch of"),
        ("cross_encoder", {"learning_rate": 1e30, "max_steps": 1, "warmup_ratio": 0.0}, "step 1: the weights overflow"),
        ("translator", {"learning_rate": 1e30, "model": "mlp1"}, "mlp1, seed 0, epoch 1, batch 1: the weights overf"),
        ("translator", {"learning_rate": 1e30, "model": "ridge_adapter"}, "epoch 1, batch 1: the weights overflow"),
    ],
)
def test_a_rate_beyond_reason_ends_every_training_with_its_step_and_a_remedy(
    make: str, changes: dict[str, Any], words: str, of_all: Path, tmp_path: Path
) -> None:
    makers: dict[str, Make] = {"biencoder": biencoder, "cross_encoder": cross_encoder, "translator": translator}
    training = partial(makers[make], **changes)(of_all, tmp_path)
    with pytest.raises(DataError, match=rf"{words}.* lower learning_rate"):
        training.run()
    assert not training.is_finished()


@pytest.mark.usefixtures("tmp_cache")
def test_scores_on_dev_that_training_made_all_equal_are_no_score(of_all: Path, tmp_path: Path) -> None:
    training = cross_encoder(of_all, tmp_path)
    assert isinstance(training, CrossEncoderTraining)

    def flatten(step: int, _: object) -> None:
        for weight in training._model.parameters():
            weight.data.zero_()

    with pytest.raises(DataError, match=r"seed_3: after step 2 all scores on dev are equal; lower learning_rate"):
        training.run(flatten)
