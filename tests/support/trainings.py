"""Trainings of an arm in this process, and the end of a training between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from unimoe.config import Experiment
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import TrainingData
from unimoe.training.loop import OnStep
from unimoe.training.trainer import ArmTraining, DevScorer

CPU = torch.device("cpu")


class KilledError(BaseException):
    """Stands for the end of the process, which no command can catch."""


class Scorer:
    """A scorer on dev that needs no collection."""

    def __init__(self, score: Callable[[UnimodelForExp1], float]) -> None:
        self._score = score

    def prepare(self) -> None:
        """Nothing to bring."""

    def __call__(self, model: UnimodelForExp1) -> Mapping[str, float]:
        """One measure."""
        return {"score": self._score(model)}


def _sum_of_weights(model: UnimodelForExp1) -> float:
    return sum(float(w.detach().double().sum()) for name, w in model.named_parameters() if "lora_" in name) % 1


of_the_weights = Scorer(_sum_of_weights)
"""Depends on every bit of the adapters, and so on the whole training up to here."""


def kill_after(moment: int) -> OnStep:
    """End a training when it has taken so many steps."""

    def on_step(step: int, facts: Any) -> None:
        if step == moment:
            raise KilledError

    return on_step


def train(
    experiment: Experiment,
    data: TrainingData,
    arm: str = "rank_only_r8",
    die_after: int | None = None,
    score_on_dev: DevScorer | None = None,
) -> Path:
    """Train an arm with seed 0 in float32, and return its checkpoint."""
    training = ArmTraining(experiment, arm, 0, ModelLoader(experiment, CPU, torch.float32), data, score_on_dev)
    training.run(None if die_after is None else kill_after(die_after))
    return training.last
