"""Settings of a training that go together, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError


def experiment(arm: dict[str, Any] | None = None, **training: Any) -> Experiment:
    raw = {
        "name": "tiny",
        "seeds": [0],
        "model": {"base": "some/model"},
        "training": {"collection": "apidocs", "steps": 70, **training},
        "arms": {"rank": {"task": "rank_only", "learning_rate": 1e-3} | (arm or {})},
    }
    return parse_config(Experiment, raw, source="tiny")


def mistake(arm: dict[str, Any] | None = None, **training: Any) -> str:
    with pytest.raises(UsageError) as caught:
        experiment(arm, **training)
    return str(caught.value)


class TestWarmUp:
    @pytest.mark.parametrize(("ratio", "steps"), [(0.0, 0), (0.1, 7), (0.11, 8), (0.98, 69)])
    def test_a_ratio_is_rounded_up_to_steps(self, ratio: float, steps: int) -> None:
        assert experiment(warmup_ratio=ratio).training.warmup == steps

    def test_both_are_refused(self) -> None:
        assert "give one of them" in mistake(warmup_steps=5, warmup_ratio=0.1)

    def test_a_ratio_that_leaves_no_step_is_refused(self) -> None:
        assert "must be below steps 70" in mistake(warmup_ratio=0.99)


class TestFirstLayer:
    @pytest.mark.parametrize(
        ("first_layer", "layers", "first"),
        [
            (0, 30, 0), (15, 30, 15), (29, 30, 29),
            (0.5, 30, 15), (0.5, 16, 8), (0.5, 3, 2), (0.5, 5, 3), (0.5, 2, 1),
            (0.01, 30, 0), (0.7, 16, 11), (0.99, 30, 29), (0.99, 1, 0),
        ],
    )  # fmt: skip
    def test_a_share_is_rounded_to_the_nearest_layer(self, first_layer: float, layers: int, first: int) -> None:
        assert LoraConfig(first_layer=first_layer).first_of(layers) == first

    @pytest.mark.parametrize("layers", [2, 15])
    def test_a_layer_that_the_model_lacks_is_refused(self, layers: int) -> None:
        words = (
            rf"lora\.first_layer 15: this model has layers 0 to {layers - 1}, {layers} in all; give .* share .* 0\.5$"
        )
        with pytest.raises(UsageError, match=words):
            LoraConfig(first_layer=15).first_of(layers)

    @pytest.mark.parametrize(("text", "value"), [("15", 15), ("0", 0), ("0.5", 0.5), ("5e-1", 0.5)])
    def test_a_layer_stays_a_layer_and_a_share_a_share(self, text: str, value: float) -> None:
        found = parse_config(
            Experiment, overridden(experiment().model_dump(), [f"lora.first_layer={text}"]), "tiny"
        ).lora.first_layer
        assert (found, type(found)) == (value, type(value))
        assert (
            parse_config(
                Experiment, {**experiment().model_dump(), "lora": {"first_layer": found}}, "x"
            ).lora.first_layer
            == value
        )

    @pytest.mark.parametrize("text", ["1.0", "0.0", "-1", "-0.5", "1.5", "true", ".nan", "half", "null", "[1]", '"3"'])
    def test_anything_else_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_config(Experiment, overridden(experiment().model_dump(), [f"lora.first_layer={text}"]), "tiny")
        line = str(caught.value)
        assert line.startswith("tiny: lora.first_layer: give a layer, counted from 0, or a share of the layers")
        assert "\n" not in line
        assert ";" not in line  # one mistake, not one for each type


class TestMistakes:
    def test_patience_needs_evaluations(self) -> None:
        assert "evaluate_every is not set" in mistake(patience=2)
        assert experiment(patience=2, evaluate_every=5).training.patience == 2

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"schedule": "step"}, "training.schedule: must be 'linear', 'cosine', 'constant' or 'onecycle'"),
            ({"accumulation_steps": 0}, "training.accumulation_steps: must be at least 1"),
            ({"tracking": ["mlflow"]}, "training.tracking[0]: must be 'tensorboard' or 'wandb'"),
            ({"dev": {"querys": 5}}, "training.dev.querys: unknown key (did you mean 'queries'?)"),
            ({"ranking": {"hard_negatives": 0}}, "a ranking example needs a negative"),
        ],
        ids=str,
    )
    def test_others_name_key_and_mend(self, settings: dict[str, Any], words: str) -> None:
        assert words in mistake(**settings)
