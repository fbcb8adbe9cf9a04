"""Arms of one base model in a study: rates, losses and ways of joint training, each with settings chosen on dev.

    family: arms
    config: experiments/bundled             # its arms and seeds are not read
    arms:
      joint_r8: {set: {arm.task: joint, arm.ranking_weight: 0.5}}
    grid: {arm.learning_rate: [4e-3, 8e-3]}

``unimoe run`` trains the arms of an experiment as they are configured. A study chooses among settings first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from unimoe.checks import report
from unimoe.config import Experiment
from unimoe.config.base import Name
from unimoe.config.training import ArmConfig, ArmTask, DevConfig
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json, read_bytes
from unimoe.data.catalog import load_collection
from unimoe.evaluation.datasets import LoadedDataset, load_reporting, tier_datasets
from unimoe.evaluation.dev_eval import DevEvaluation
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.evaluate import Evaluator, evaluations
from unimoe.evaluation.folder_settings import folder_dtype, keep_settings
from unimoe.evaluation.system import (
    ZERO_SHOT_ARM,
    System,
    first_stage_system,
    tasks_of,
    trained_system,
    zero_shot_system,
)
from unimoe.models.batching import default_token_budget
from unimoe.models.checkpoint import judged_checkpoint
from unimoe.models.embedder import Advance
from unimoe.models.loader import ModelLoader
from unimoe.results import Task, result_path
from unimoe.studies.common.family import Family, Sample
from unimoe.studies.common.study import Changes, Study, merged
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.trainer import ArmTraining


class ArmStudyConfig(Experiment):
    """An experiment of one arm and one seed: a training of the study.

    Attributes:
        arm: task, learning rate, loss and aggregation of the arm; a study changes them as ``arm.learning_rate``.
        arms: those of the config that the study starts from; not read.
        seeds: of that config; not read.
        seed: of the training.
    """

    name: Name = "arms"
    arm: ArmConfig | None = None
    arms: dict[Name, ArmConfig] = Field(default={})
    seeds: list[int] = Field(default=[])
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class ArmFamily(Family[ArmStudyConfig, ArmTraining]):
    """Low-rank adapters of one base model, each trained to rank, to embed, or both."""

    config_type = ArmStudyConfig
    task: ClassVar[Task] = "reranking"
    dtype_key = "model.dtype"
    metrics = ("ndcg@10", "mrr@10")

    def __init__(self, study: Study, device: torch.device | None = None, given: Sequence[str] = ()) -> None:
        super().__init__(study, device, given)
        self._loaders: dict[str, ModelLoader] = {}
        self._data: dict[str, TrainingData] = {}

    @cached_property
    def data(self) -> list[LoadedDataset]:
        """The test sets, those of the experiment's own tier."""
        return [load_reporting(one, self.device) for one in tier_datasets(self.base, "bundled")]

    def load(self) -> None:
        """Read the test sets and the training examples."""
        _ = self.data, self._examples(self.base)

    @property
    def datasets(self) -> list[str]:
        """Names of the test sets."""
        return [one.name for one in tier_datasets(self.base, "bundled")]

    @property
    def keys(self) -> list[str]:
        """Both tasks on each test set; reranking alone where no arm learns to embed."""
        first = ((own.set, self.study.settings_of(name)[0].changes) for name, own in self.study.arms.items())
        arms = (self.configured(self.base, merged(shared, changes)).arm for shared, changes in first)
        tasks = dict.fromkeys(task for arm in arms if arm for task in tasks_of(arm))
        return [f"{task}/{name}" for task in tasks for name in self.datasets]

    def configured(self, base: ArmStudyConfig, changes: Changes) -> ArmStudyConfig:
        """Return a configuration with changes, with the last step scored on dev: that chooses a setting."""
        found = super().configured(base, changes)
        if found.arm is None:
            raise UsageError("arm: it has neither task nor learning rate; set arm.task and arm.learning_rate")
        training = found.training
        if training.evaluate_every is None:
            training = training.model_copy(update={"evaluate_every": training.steps})
        return found.model_copy(update={"training": training})

    def training(self, config: ArmStudyConfig, arm: str) -> ArmTraining:
        """Return a training with a base model that shares its weights and frozen layers with the others'."""
        experiment = self._experiment(config, arm)
        loader, dev = self._loader(experiment), DevEvaluation(experiment, arm)
        if Path(config.output_dir).is_relative_to(self.root):  # a plan's folder is not
            keep_settings(self.base.model_copy(update={"output_dir": str(self.root)}), loader.dtype)
        return ArmTraining(experiment, arm, config.seed, loader, self._examples(config), dev)

    def sample(self, config: ArmStudyConfig, arm: str) -> Sample:
        """Return a training of a few examples, which is scored on a few queries of dev."""
        experiment, whole = self._experiment(config, arm), config.training
        task = experiment.arm_named(arm).task
        loader = self._loader(experiment)
        few, data = self._examples(config).sample(experiment, default_token_budget(loader.device) // 2)
        queries = load_collection(whole.collection, whole.dev.split).sample_queries(min(2, whole.dev.queries))
        pool = min(len(queries.corpus), 8 + len(queries.relevant_documents()))
        dev = whole.dev.model_copy(update={"queries": len(queries.qrels), "pool": pool})
        few = few.model_copy(update={"training": few.training.model_copy(update={"dev": dev})})
        training = ArmTraining(few, arm, config.seed, loader, data, DevEvaluation(few, arm))
        ratios = {
            "rank_only": whole.ranking.queries_per_step / few.training.ranking.queries_per_step,
            "emb_only": whole.embedding.pairs_per_step / few.training.embedding.pairs_per_step,
        }
        step = whole.accumulation_steps * ratios.get(task, max(ratios.values()))
        scored = 1 + math.ceil(whole.steps / (whole.evaluate_every or whole.steps))
        ratio = _work(task, whole.dev, len(queries.corpus)) / _work(task, dev)
        return Sample(training, whole.steps, scored, self.test_to_dev(training), step, ratio)

    def decides_time(self, config: ArmStudyConfig) -> dict[str, Any]:
        """Return what decides the time: of the arm its task, since the loss is little work."""
        return super().decides_time(config) | {"arm": config.arm and config.arm.task}

    def dev(self, training: ArmTraining) -> dict[str, float]:
        """Return the mean of the tasks' nDCG@10 on dev before training and at its best, and the best step."""
        start, *later = map(json.loads, read_bytes(training.state.logs / "dev.jsonl").splitlines())
        best = max((start, *later), key=lambda line: (line["dev_score"], -line["step"]))
        return {"val": best["dev_score"], "start": start["dev_score"], "best": best["step"]}

    def test(self, training: ArmTraining, arm: str, advance: Advance) -> float:
        """Rerank and embed the test sets with the checkpoint that is best on dev; return the mean over all of them."""
        experiment = training.experiment
        folder = judged_checkpoint(experiment, arm, training.seed)
        found = self._evaluate(trained_system(experiment, self._loader(experiment), folder), advance)
        return math.fsum(found) / len(found)

    def test_to_dev(self, training: ArmTraining) -> float:
        """Return pairs and documents of a test for each of an evaluation on dev."""
        tier, (arm,) = self.base.evaluation.bundled, training.experiment.arms.values()
        pool = 0 if arm.task == "rank_only" else tier.pool  # every model reranks there
        return (tier.queries * tier.depth + pool) / _work(arm.task, self.base.training.dev, tier.pool)

    def untrained(self) -> dict[str, Callable[[ArmStudyConfig], None]]:
        """Return the first stage and the base model without training."""
        first = first_stage_system(self.base).name
        return {first: self._report_first_stage, ZERO_SHOT_ARM: self._report_zero_shot}

    def _report_first_stage(self, config: ArmStudyConfig) -> None:
        self._evaluate(first_stage_system(self._experiment(config, "arm")), lambda _: None)

    def _report_zero_shot(self, config: ArmStudyConfig) -> None:
        experiment = self._experiment(config, "arm")
        self._evaluate(zero_shot_system(experiment, self._loader(experiment)), lambda _: None)

    def with_dtype(self, dtype: str | None) -> None:
        """Take the dtype of the workers, or else that with which the study was begun; in a new one the faster here."""
        super().with_dtype(dtype or str(folder_dtype(self.base, self.device, Engine())).removeprefix("torch."))

    def is_tested(self, training: ArmTraining, arm: str, seed: int | None) -> bool:
        """Return whether the results of all tasks are there."""
        tasks = tasks_of(training.experiment.arm_named(arm))
        return all(result_path(self.root, arm, seed, task, name).exists() for task in tasks for name in self.datasets)

    def identity(self, training: ArmTraining) -> list[str]:
        """Return hashes of the training and of the test sets."""
        return [training.state.fingerprint, *(one.collection.content_hash for one in self.data)]

    def notes(self) -> Sequence[str]:
        """Say what the setting was chosen by."""
        return ("dev: nDCG@10 of the training collection's dev queries, the mean of both tasks for a joint arm.",)

    def _evaluate(self, system: System, advance: Advance) -> list[float]:
        """Return the main scores of a system on the test sets, and write the results unless they exist."""
        evaluator = Evaluator(self.given)
        wanted = [evaluation for data in self.data for evaluation in evaluations(system, data)]
        results = [evaluator.evaluated(evaluation, advance) for evaluation in wanted]
        return [result.aggregate[result.main_metric] for result in results]

    def _experiment(self, config: ArmStudyConfig, arm: str) -> Experiment:
        """Return the experiment of one arm and one seed, which has the study's name."""
        own = {"name": self.study.name, "arms": {arm: config.arm}, "seeds": [config.seed], "gates": None}
        return Experiment.model_validate({**config.model_dump(exclude={"arm", "seed"}), **own})

    def _loader(self, experiment: Experiment) -> ModelLoader:
        """Return the loader that trainings with the same model, prompt and adapted layers share."""
        key = hash_json(experiment.model_dump(mode="json", include={"model", "prompt", "lora", "evaluation"}))
        if key not in self._loaders:
            dtype = Engine().dtype(self.device, experiment.model.dtype, trains=True)
            self._loaders[key] = ModelLoader(experiment, self.device, dtype)
        return self._loaders[key]

    def _examples(self, config: ArmStudyConfig) -> TrainingData:
        """Return the training examples, which trainings with the same recipe share."""
        key = hash_json(config.training.model_dump(mode="json"))
        if key not in self._data:
            (reported,) = self.data
            self._data[key] = load_training_data(config, reported.whole)
            report(self._data[key].checks)
        return self._data[key]


def _work(task: ArmTask, dev: DevConfig, documents: int = 0) -> int:
    """Return the pairs and texts of an evaluation on dev. Its pool is by default a corpus of so many documents."""
    pairs = 0 if task == "emb_only" else dev.queries * dev.depth
    return pairs + (0 if task == "rank_only" else dev.pool or documents)
