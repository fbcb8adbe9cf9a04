"""Joint arms under every aggregation: they train, and leave a record of conflicts that costs nothing but time."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
import safetensors.torch
import torch
from support.experiments import tiny_experiment_dict
from support.trainings import train

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.config.training import AggregationName
from unimoe.models.checkpoint import ADAPTER_FILE, read_checkpoint
from unimoe.results.logs import read_conflict_logs
from unimoe.training.examples import TrainingData, load_training_data

AGGREGATIONS = get_args(AggregationName)
STEPS, INTERVAL = 4, 2


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny_experiment_dict(tmp_path_factory.mktemp("joint"))


@pytest.fixture(scope="module")
def data(raw: dict[str, Any]) -> TrainingData:
    return load_training_data(parse_config(Experiment, raw, source="tiny"))


def experiment(
    raw: dict[str, Any], folder: Path, *, conflicts: dict[str, Any] | None = None, dropout: float = 0.0, **arm: Any
) -> Experiment:
    training = raw["training"] | {"conflicts": conflicts or {"interval": INTERVAL}, "steps": STEPS, "save_every": 2}
    joint = {"task": "joint", "learning_rate": 1e-2, "ranking_weight": 0.4, "gradvac_beta": 0.5, **arm}
    changed = {"output_dir": str(folder), "training": training, "arms": {"joint_r8": joint}}
    return parse_config(Experiment, raw | changed | {"lora": raw["lora"] | {"dropout": dropout}}, source="tiny")


def conflict_log(checkpoint: Path) -> Path:
    return checkpoint.parent / "logs" / "gradient_conflicts.jsonl"


@pytest.fixture(scope="module")
def undisturbed(raw: dict[str, Any], data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return {name: train(experiment(raw, folder / name, aggregation=name), data, "joint_r8") for name in AGGREGATIONS}


def test_every_method_ends_elsewhere(undisturbed: dict[str, Path]) -> None:
    ends = {name: safetensors.torch.load_file(folder / ADAPTER_FILE) for name, folder in undisturbed.items()}
    flat = {name: torch.cat([weight.flatten() for weight in end.values()]) for name, end in ends.items()}
    assert all(bool(end.isfinite().all()) for end in flat.values())
    for first, second in combinations(sorted(flat), 2):
        assert float((flat[first] - flat[second]).abs().max()) > 3e-4, (first, second)


def test_the_record_changes_no_weight(raw: dict[str, Any], data: TrainingData, tmp_path: Path) -> None:
    hashes = set()
    for name, settings in (("with", {"interval": 1}), ("without", {"measure": False})):
        config = experiment(raw, tmp_path / name, aggregation="gradvac", dropout=0.3, conflicts=settings)
        checkpoint = train(config, data, "joint_r8")
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
