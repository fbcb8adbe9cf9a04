"""Trains one arm with one seed, and writes its checkpoints.

A resumed training takes the same steps with the same batches and random numbers as an undisturbed one. Under
``torchrun`` or ``accelerate launch`` the processes share each batch, and the leader writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import torch

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.base import BaseModel
from unimoe.models.checkpoint import MANIFEST
from unimoe.models.frozen_layers import FrozenLayers
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget
from unimoe.training.aggregation import Task
from unimoe.training.checkpoint_manager import CheckpointManager
from unimoe.training.examples import TrainingData
from unimoe.training.gradients import ArmGradients, arm_batches
from unimoe.training.loop import Facts, OnStep, Training
from unimoe.training.optimizer import MasterAdamW, learning_rate_at
from unimoe.training.run_state import Parts
from unimoe.training.tracking import Log, refuse_missing, trackers


class DevScorer(Protocol):
    """Scores the model in training on dev."""

    def prepare(self) -> None:
        """Load the dev data, so that an error is raised before the first step."""

    def __call__(self, model: UnimodelForExp1) -> Mapping[str, float]:
        """Return measures by name; their mean chooses the best checkpoint."""


def train_arm(
    experiment: Experiment,
    arm: str,
    seed: int,
    *,
    base: BaseModel,
    data: TrainingData,
    frozen_layers: FrozenLayers | None = None,
    on_step: OnStep | None = None,
    score_on_dev: DevScorer | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Train one arm and write ``{output_dir}/{arm}/seed_{N}/checkpoint``, the last, and ``checkpoint-best``.

    A training that was stopped continues from its saved state, and a finished one is kept.

    Args:
        experiment: holds the arm.
        arm: its name.
        seed: initialises the adapters and orders the batches.
        base: a newly loaded base model; it is changed in place.
        data: the training examples.
        frozen_layers: frozen lower layers shared with other arms and seeds.
        on_step: called after every step with the steps taken and what ``logs/train.jsonl`` says of the last.
        score_on_dev: evaluates the model every ``training.evaluate_every`` steps.
        processes: those that share the batches.

    Returns:
        The folder of the last checkpoint.
    """
    training = ArmTraining(experiment, arm, seed, base, data, frozen_layers, processes, score_on_dev)
    training.run(on_step)
    return training.checkpoints.last


def model_in_training(
    experiment: Experiment, base: BaseModel, seed: int, frozen_layers: FrozenLayers | None = None
) -> tuple[Any, UnimodelForExp1]:
    """Add new adapters to a base model; return the PEFT model, and the model of both tasks in training mode."""
    first_layer = experiment.lora.first_of(base.layers)
    peft = add_lora(base, experiment.lora, seed)
    model = UnimodelForExp1(base, experiment.prompt, experiment.model.max_length, first_layer, frozen_layers)
    if experiment.training.activation_checkpointing:
        base.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return peft, model


class ArmTraining(Training):
    """One training in progress: model, optimizer, data and progress. Arguments are those of ``train_arm``."""

    dev_log: ClassVar[str] = "dev"

    def __init__(
        self,
        experiment: Experiment,
        arm: str,
        seed: int,
        base: BaseModel,
        data: TrainingData,
        frozen_layers: FrozenLayers | None,
        processes: Processes = ALONE,
        score_on_dev: DevScorer | None = None,
    ) -> None:
        training = experiment.training
        if training.evaluate_every and score_on_dev is None:
            raise UsageError("training.evaluate_every is set: train_arm needs score_on_dev, see evaluation.dev_eval")
        self.experiment, self._training, self._arm = experiment, training, experiment.arm_named(arm)
        self._arm_name, self.seed, self._base, self._data = arm, seed, base, data
        self._frozen_layers, self._processes, self._score_on_dev = frozen_layers, processes, score_on_dev
        dtype = str(base.model.get_output_embeddings().weight.dtype).removeprefix("torch.")
        self.checkpoints = CheckpointManager(
            experiment, arm, seed, base=base.identity, dtype=dtype, data=data.content_hash, processes=processes
        )
        super().__init__(
            self.checkpoints.state,
            training.steps,
            dev_every=training.evaluate_every,
            save_every=training.save_every,
            patience=training.patience,
        )

    @property
    def outputs(self) -> Sequence[Path]:
        """The manifests of both checkpoints."""
        return self.checkpoints.last / MANIFEST, self.checkpoints.best / MANIFEST

    def is_finished(self) -> bool:
        """Return whether the last checkpoint exists; see ``Training``."""
        return self.checkpoints.is_finished()

    def check(self) -> None:
        """Refuse trackers that are not installed, and dev data that cannot be loaded."""
        refuse_missing(self._training.tracking)
        if self._score_on_dev and self._training.evaluate_every and self._processes.leads:
            self._score_on_dev.prepare()

    def prepare(self) -> None:
        """Add the adapters and load the examples."""
        config, training = self.experiment, self._training
        self.checkpoints.refuse_other_best()
        self._peft, self._model = model_in_training(config, self._base, self.seed, self._frozen_layers)
        weights = adapter_parameters(self._peft)
        self._optimizer = MasterAdamW(weights, training.weight_decay)
        batches = arm_batches(config, self._arm.task, self.seed, self._data, self._model)
        log = self.state.logs / "gradient_conflicts.jsonl"
        self._gradients = ArmGradients(config, self._arm, self._model, weights, batches, log, self._processes)

    def watch(self) -> AbstractContextManager[Log]:
        """Return the trackers, which the leader alone has."""
        return trackers(
            self._training.tracking if self._processes.leads else [],
            self.state.logs,
            run=f"{self.experiment.name}-{self._arm_name}-seed{self.seed}",
            identity=self.state.fingerprint,
            step=self.progress.step,
            config=self.experiment.model_dump(),
        )

    def step(self, number: int) -> Facts:
        """Take one optimizer step: on the ranking batch, the embedding batch, or both."""
        start = time.perf_counter()
        torch.manual_seed(self.seed * 1_000_003 + number)  # dropout: a resumed step draws what the first try drew
        training = self._training
        found = self._gradients.add(number)
        spoilt = [task for task, loss in found.losses.items() if not math.isfinite(loss)]
        if spoilt:
            self._stop(number, f"the loss is {found.losses[spoilt[0]]}", spoilt)
        rate = learning_rate_at(number, training.steps, training.warmup, self._arm.learning_rate, training.schedule)
        norm = self._optimizer.step(rate, training.max_grad_norm)
        if not math.isfinite(norm):
            self._stop(number, f"the gradient's norm is {norm}", list(found.losses))
        self._gradients.aggregation.learn(found.losses)
        self.progress.count("tokens", found.tokens)
        return {
            "task": self._arm.task,
            "loss": found.total,
            "ranking_loss": found.losses.get("ranking"),
            "embedding_loss": found.losses.get("embedding"),
            "lr": rate,
            "grad_norm": norm,
            "tokens": found.tokens,
            "tokens_per_s": found.tokens / (time.perf_counter() - start),
        }

    def score_on_dev(self) -> tuple[float, Facts]:
        """Return the mean of the scores on dev, and the scores, which the leader alone has."""
        assert self._score_on_dev is not None  # noqa: S101 - for the type checker: refused at the start
        scores = dict(self._score_on_dev(self._model)) if self._processes.leads else {}
        mean = math.fsum(scores.values()) / len(scores) if scores else 0.0
        mean = float(self._processes.total(torch.tensor(mean, dtype=torch.float64)))  # the leader's, for all
        return mean, {"dev_score": mean, **scores}

    def parts(self) -> Parts:
        """Return the optimizer's state, with the weights, and that of a joint arm's aggregation."""
        return {"optimizer": self._optimizer.state(), "aggregation": self._gradients.aggregation.state()}

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned."""
        if self.progress.best_step:
            self.checkpoints.refuse_other_best(is_there=True)
        self._optimizer.load_state(parts["optimizer"])
        self._gradients.aggregation.load_state(parts.get("aggregation", {}))

    def keep_best(self) -> None:
        """Write the best checkpoint."""
        self._save("best")

    def finish(self) -> None:
        """Write the last checkpoint."""
        self._save("last")

    def _save(self, which: Literal["best", "last"]) -> None:
        training, task = self._training, self._arm.task
        batches = self.progress.step * training.accumulation_steps
        seen = TrainingBudget(
            steps=self.progress.step,
            ranking_examples=batches * training.ranking.queries_per_step if task != "emb_only" else 0,
            embedding_examples=batches * training.embedding.pairs_per_step if task != "rank_only" else 0,
            tokens=self.progress.extra.get("tokens", 0),
        )
        self.checkpoints.save(which, seen, self._peft, self._model, self._optimizer.masters)

    def _stop(self, step: int, what: str, tasks: Sequence[Task]) -> NoReturn:
        ids = self._gradients.query_ids(step, tasks)
        named = ", ".join(ids[:16]) + (f" and {len(ids) - 16} more" if len(ids) > 16 else "")
        raise DataError(
            f"{self._arm_name}, seed {self.seed}, step {step + 1}: {what}; its queries are {named}; lower the arm's "
            "learning_rate, or set model.dtype to float32 (what was saved before this step is kept)"
        )
