"""A whole experiment at the size of a test, trainings of its arms, and the end of a training between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from support.tiny_models import save_tiny_model

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.evaluation.system import System, zero_shot_system
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import EmbeddingSet, RankingSet, TokenizedTexts, TrainingData
from unimoe.training.loop import OnStep
from unimoe.training.trainer import ArmTraining, DevScorer


def tiny_experiment_dict(folder: Path) -> dict[str, Any]:
    """The plain data of an experiment whose model and outputs live in ``folder``."""
    model = folder / "tiny-model"
    if not model.exists():
        save_tiny_model(model)
    return {
        "name": "tiny",
        "output_dir": str(folder / "outputs"),
        "seeds": [0, 1],
        "model": {"base": str(model), "dtype": "float32", "max_length": 256},
        "prompt": {
            "template": "chat",
            "order": "document_first",
            "instruction": "Judge it.",
            "query_prefix": "",
            "embedding_suffix": "\n",
        },
        "lora": {"first_layer": 2},
        "training": {
            "collection": "apidocs",
            "steps": 6,
            "warmup_steps": 1,
            "save_every": 2,
            "ranking": {"queries": 12, "queries_per_step": 2, "hard_negatives": 1, "random_negatives": 1},
            "embedding": {"queries": 16, "pairs_per_step": 4, "hard_negatives": 1},
        },
        "evaluation": {"bundled": {"queries": 6, "depth": 4, "pool": 40}},
        "arms": {
            "rank_only_r8": {"task": "rank_only", "learning_rate": 1e-2},
            "emb_only_r8": {"task": "emb_only", "learning_rate": 1e-2},
            "joint_r8": {"task": "joint", "learning_rate": 1e-2, "ranking_weight": 0.5},
        },
    }


def tiny_experiment(folder: Path) -> Experiment:
    """An experiment whose model and outputs live in ``folder``."""
    return parse_config(Experiment, tiny_experiment_dict(folder), source="tiny")


def changed(experiment: Experiment, folder: Path, *overrides: str) -> Experiment:
    """The same with other settings, in another folder."""
    raw = overridden(experiment.model_dump(), [f"output_dir={folder}", *overrides])
    return parse_config(Experiment, raw, source="tiny")


def write_tiny_experiment(folder: Path) -> Path:
    """The same as a YAML file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment_dict(folder)), encoding="utf-8")
    return path


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


def zero_shot(experiment: Experiment, dtype: torch.dtype = torch.float32) -> System:
    """An experiment's base model without training."""
    return zero_shot_system(experiment, ModelLoader(experiment, CPU, dtype))


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


def tiny_examples(model: UnimodelForExp1) -> tuple[RankingSet, EmbeddingSet]:
    """Examples of both tasks, as prompts of a model: of ranking two lists of three, of embedding three queries."""
    questions = [("cat", "mat " * n) for n in (1, 9, 2)] + [("dog", "rain " * n) for n in (5, 1, 7)]
    ranking = RankingSet(
        TokenizedTexts.of(model, model.pair_ids(questions)),
        [[0, 1, 2], [3, 4, 5]],
        query_ids=["a", "b"],
        labels=[[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        batched=[[0], [1]],
    )
    documents = ["the cat sat", "rain fell on the roof", "a quick sort " * 5, "old house", "list"]
    embedding = EmbeddingSet(
        queries=TokenizedTexts.of(model, model.text_ids(["cat", "rain on a house", "sort"], "query")),
        documents=TokenizedTexts.of(model, model.text_ids(documents, "document")),
        groups=[[0, 1], [3, 4], [2, 0]],
        relevant=[frozenset({0}), frozenset({1, 3}), frozenset({2})],
        query_ids=["a", "b", "c"],
    )
    return ranking, embedding
