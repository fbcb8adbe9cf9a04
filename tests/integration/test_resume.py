"""The one training loop, killed at random moments with every kind of step: the end is that of an undisturbed run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.experiments import tiny_experiment
from support.heads import topics_folder, toy_config, toy_data
from support.studies import cross_encoder_config, small_config, small_split, toy_training
from support.tiny_encoders import save_tiny_encoder
from support.trainings import CPU, KilledError, kill_after, of_the_weights

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.models.loader import ModelLoader
from unimoe.studies.cross_encoder.data import load_cross_encoder_data
from unimoe.studies.cross_encoder.trainer import CrossEncoderTraining
from unimoe.studies.heads.config import TrainConfig, methods
from unimoe.studies.heads.trainer import HeadTrainer
from unimoe.studies.translator.config import CLOSED_FORMS, MODELS
from unimoe.studies.translator.training.trainer import TranslatorTrainer
from unimoe.training.examples import load_training_data
from unimoe.training.loop import Training
from unimoe.training.trainer import ArmTraining

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")
KILLS = 2
Make = Callable[[Path, Path], Training]
"""Makes a training: of data in one folder, with its outputs in another."""


def arm(name: str, *settings: str) -> Make:
    def make(data: Path, out: Path) -> Training:
        raw = overridden(tiny_experiment(data).model_dump(), [f"output_dir={out}", *settings])
        experiment = parse_config(Experiment, raw, source="tiny")
        loader = ModelLoader(experiment, CPU, torch.float32)
        examples = load_training_data(experiment)
        return ArmTraining(experiment, name, 0, loader, examples, of_the_weights)

    return make


def head(data: Path, out: Path, **changes: Any) -> Training:
    folder = data / "topics"
    if not folder.exists():
        topics_folder(folder)
    config = toy_config(folder, out, **{"learning_rate": 1e-3, **changes})
    return HeadTrainer(TrainConfig.model_validate(config.model_dump()), toy_data(config))


def biencoder(data: Path, out: Path, **changes: Any) -> Training:
    return toy_training(data, **changes, output_dir=str(out))


def cross_encoder(data: Path, out: Path, **changes: Any) -> Training:
    encoder, topics = data / "cross_encoder", data / "lists"  # a bi-encoder and a head have others
    if not encoder.exists():
        save_tiny_encoder(encoder)
        topics_folder(topics, {"train": 24, "dev": 6, "test": 6})
    config = cross_encoder_config(encoder, topics, out, **changes)
    return CrossEncoderTraining(config, load_cross_encoder_data(config), CPU)


def translator(data: Path, out: Path, **changes: Any) -> Training:
    return TranslatorTrainer(small_config(out, **changes), *small_split())


EVERYTHING = (
    "training.evaluate_every=1", "training.patience=3", "training.schedule=onecycle", "training.warmup_steps=2",
    "training.steps=8", "training.accumulation_steps=2", "lora.dropout=0.2",
)  # fmt: skip
RECIPE = {"sigma_is": "absolute", "optimizer": "sgd", "adaptive_sigma": True, "seed_scale": True, "max_norm": 1.0}
HEADS: dict[str, dict[str, Any]] = {method: {"method": method} for method in methods() if method != "zero_shot"} | {
    "hybrid": {"method": "hybrid", "handoff": 5},
    "genetic": {"method": "genetic", "genetic": {"individuals": 6}},
    "the original's recipe": {"method": "eggroll", "sigma": 0.02} | RECIPE,
    "fp4": {"method": "eggroll", "precision": "fp4"},
    "sgd": {"method": "infonce", "optimizer": "sgd", "weight_decay": 0.01, "max_norm": 1.0},
    "objectives": {"method": "eggroll", "objectives": {"relevance": 1.0, "diversity": 0.3, "fairness": 0.3}},
}
BIENCODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"chunk_size": 3, "accumulation": 3, "schedule": "onecycle", "loss": {"symmetric": False}},
    "negatives": {"negatives": {"per_query": 1, "depth": 6, "refresh_every": 1}, "out_dim": None},
    "bfloat16": {"precision": "bfloat16", "epochs": 1, "save_every": 2},
    "frozen": {"freeze_base": True, "negatives": {"per_query": 1, "depth": 6, "source": "model"}, "save_every": 1},
}
CROSS_ENCODERS: dict[str, dict[str, Any]] = {
    "shuffled": {"loss": {"name": "listmle", "respect_input_order": False, "ties": "shuffle"}},
    "sampled": {"loss": {"name": "score_es", "directions": 8, "sigma_end": 0.2}},
}
KINDS: dict[str, Make] = {
    "joint arm": arm("joint_r8"),
    "joint arm by gradvac": arm("joint_r8", "arms.joint_r8.aggregation=gradvac"),
    "joint arm by uncertainty": arm("joint_r8", "arms.joint_r8.aggregation=uncertainty"),
    "arm with dev, dropout and accumulation": arm("rank_only_r8", *EVERYTHING),
    "arm by score_es": arm(
        "rank_only_r8", "training.ranking.loss=score_es", "training.ranking.loss_options.sigma_end=0.1"
    ),
    "arm by pg_rank": arm("rank_only_r8", "training.ranking.loss=pg_rank"),
    **{f"head by {name}": partial(head, **changes) for name, changes in HEADS.items()},
    **{f"bi-encoder, {name}": partial(biencoder, **changes) for name, changes in BIENCODERS.items()},
    **{f"cross-encoder, {name}": partial(cross_encoder, **changes) for name, changes in CROSS_ENCODERS.items()},
    **{f"translator {name}": partial(translator, model=name) for name in MODELS if name not in CLOSED_FORMS},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def assert_close(found: Any, expected: Any) -> None:
    """Compare records, whatever they took; and numbers to 1e-6."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"seconds", "tokens_per_s"}:
            assert_close(found[name], expected[name])
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-6)
    else:
        assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_ends_where_an_undisturbed_one_does(kind: str, data: Path, tmp_path: Path) -> None:
    whole = KINDS[kind](data, tmp_path / "whole")
    whole.run()
    last = whole.progress.step
    moments = sorted(random.Random(kind).sample(range(1, last + 1), KILLS))
    for moment in moments:
        killed = KINDS[kind](data, tmp_path / "killed")
        with pytest.raises(KilledError):
            killed.run(kill_after(moment))
        assert not killed.is_finished()
    taken: list[int] = []
    resumed = KINDS[kind](data, tmp_path / "killed")
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
