"""The expected minutes: no oracle but the clock, so what is tested is how they follow the experiment's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import tiny_base

from unimoe.cli.estimate import BUNDLED_SHAPE, Shape, estimated_seconds, expectation, shape_of
from unimoe.config import Experiment
from unimoe.config.files import load_experiment

SPEED = 1e12


@pytest.fixture(scope="module")
def bundled() -> Experiment:
    return load_experiment(Path("experiments/bundled"))


def with_training(experiment: Experiment, **changes: Any) -> Experiment:
    return experiment.model_copy(update={"training": experiment.training.model_copy(update=changes)})


def test_bundled_takes_minutes_on_two_cores_with_bfloat16_units(bundled: Experiment) -> None:
    assert 5 * 60 < estimated_seconds(bundled, BUNDLED_SHAPE, SPEED) < 25 * 60


def test_twice_the_speed_takes_less_than_before_and_more_than_half(bundled: Experiment) -> None:
    slow, fast = (estimated_seconds(bundled, BUNDLED_SHAPE, speed) for speed in (SPEED, 2 * SPEED))
    assert slow / 2 < fast < slow


def test_more_steps_seeds_and_arms_take_longer(bundled: Experiment) -> None:
    usual = estimated_seconds(bundled, BUNDLED_SHAPE, SPEED)
    without_joint = {name: arm for name, arm in bundled.arms.items() if arm.task != "joint"}
    assert estimated_seconds(with_training(bundled, steps=60), BUNDLED_SHAPE, SPEED) > usual
    assert estimated_seconds(bundled.model_copy(update={"seeds": [0, 1, 2, 3]}), BUNDLED_SHAPE, SPEED) > usual
    assert estimated_seconds(bundled.model_copy(update={"arms": without_joint}), BUNDLED_SHAPE, SPEED) < usual


def test_a_frozen_half_saves_time(bundled: Experiment) -> None:
    all_layers = bundled.model_copy(update={"lora": bundled.lora.model_copy(update={"first_layer": 0})})
    assert estimated_seconds(all_layers, BUNDLED_SHAPE, SPEED) > estimated_seconds(bundled, BUNDLED_SHAPE, SPEED)


def test_a_larger_model_takes_longer(bundled: Experiment) -> None:
    larger = Shape(BUNDLED_SHAPE.layers, 4 * BUNDLED_SHAPE.layer_weights)
    assert estimated_seconds(bundled, larger, SPEED) > estimated_seconds(bundled, BUNDLED_SHAPE, SPEED)


def test_shape_counts_the_matrices_of_the_layers() -> None:
    shape = shape_of(tiny_base(layers=3))
    per_layer = sum(w.numel() for w in tiny_base(layers=1).model.model.layers.parameters() if w.dim() > 1)
    assert shape == Shape(3, 3 * per_layer)


def test_a_long_wait_comes_with_a_hint_at_smoke() -> None:
    assert expectation(14 * 60) == "about 14 minutes from scratch on this machine"
    assert expectation(83 * 60).startswith("about 83 minutes from scratch on this machine; --smoke ")
    assert "--smoke" not in expectation(83 * 60, smoke=True)
