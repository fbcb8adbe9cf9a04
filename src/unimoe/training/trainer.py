"""Trains one arm with one seed, and writes its checkpoints.

A resumed training takes the same steps with the same batches and random numbers as an undisturbed one. Under
``torchrun`` or ``accelerate launch`` the processes share each batch, and the leader writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import safetensors.torch
import torch
from torch import Tensor

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import atomic_dir, hash_file, hash_json, write_text
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.adapter_files import name_base
from unimoe.models.base import BaseModel
from unimoe.models.checkpoint import (
    ADAPTER_FILE,
    MANIFEST,
    Checkpoint,
    folder_name,
    read_checkpoint,
    training_settings,
    write_manifest,
)
from unimoe.models.frozen_layers import FrozenLayers
from unimoe.models.identity import ADAPTER_SETTINGS
from unimoe.models.loader import ModelLoader
from unimoe.models.seen_queries import SeenQueries
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget, arm_dir
from unimoe.training.aggregation import TrainingTask
from unimoe.training.examples import TrainingData
from unimoe.training.gradients import ArmGradients, arm_batches
from unimoe.training.loop import StepFacts, Training
from unimoe.training.model_card import base_on_hub, model_card
from unimoe.training.run_state import Parts, RunState
from unimoe.training.steps import MasterAdamW, learning_rates, overflow


class DevScorer(Protocol):
    """Scores the model in training on dev."""

    def prepare(self) -> None:
        """Load the dev data, so that an error is raised before the first step."""

    def __call__(self, model: UnimodelForExp1) -> Mapping[str, float]:
        """Return measures by name; their mean chooses the best checkpoint."""


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
    """Trains one arm and writes ``{output_dir}/{arm}/seed_{N}/checkpoint``, the last, and ``checkpoint-best``.

    Args:
        experiment: holds the arm.
        arm: its name.
        seed: initialises the adapters and orders the batches.
        loader: of the base model; other arms and seeds share its frozen layers.
        data: the training examples.
        score_on_dev: evaluates the model before training and every ``training.evaluate_every`` steps.
        processes: those that share the batches.

    Attributes:
        last: the folder of the last checkpoint.
        best: that of the checkpoint with the highest score on dev, of step 0 until there is a better one.
    """

    dev_log: ClassVar[str] = "dev"

    def __init__(
        self,
        experiment: Experiment,
        arm: str,
        seed: int,
        loader: ModelLoader,
        data: TrainingData,
        score_on_dev: DevScorer | None = None,
        processes: Processes = ALONE,
    ) -> None:
        training = experiment.training
        if training.evaluate_every and score_on_dev is None:
            raise UsageError("training.evaluate_every is set: an arm needs score_on_dev, see evaluation.dev_eval")
        self.experiment, self._training, self._arm_config = experiment, training, experiment.arm_named(arm)
        self.arm, self.seed, self.loader, self._data = arm, seed, loader, data
        self._score_on_dev, self._processes = score_on_dev, processes
        content = {"base": loader.identity, "dtype": loader.dtype_name, "data": data.content_hash}
        settings = training_settings(experiment, arm, seed, **content)
        folder = arm_dir(Path(experiment.output_dir), arm, seed)
        self.last, self.best = folder / folder_name("last"), folder / folder_name("best")
        super().__init__(
            RunState(folder, settings, hash_json(settings), processes, training.tracking),
            training.steps,
            dev_every=training.evaluate_every,
            save_every=training.save_every,
            patience=training.patience,
            scores_start=training.evaluate_every is not None,
        )

    @property
    def outputs(self) -> Sequence[Path]:
        """The manifests of both checkpoints."""
        return self.last / MANIFEST, self.best / MANIFEST

    def is_finished(self) -> bool:
        """Return whether the last checkpoint exists; refuse one of another training, or without the best next to it."""
        finished = self.last.exists()
        for folder in (self.last, self.best):
            if folder.exists() or (finished and self._training.evaluate_every):
                self._refuse_other(folder)
        return finished

    def _refuse_other(self, folder: Path) -> None:
        """Refuse a checkpoint that is missing, damaged or of another training."""
        found = read_checkpoint(folder)
        content = {"base": found.base_model, "dtype": found.dtype}
        settings = training_settings(found.recorded, found.arm, found.seed, **content)
        self.state.refuse_other(folder, found.fingerprint, settings)

    def check(self) -> None:
        """Refuse dev data that cannot be loaded."""
        if self._score_on_dev and self._training.evaluate_every and self._processes.leads:
            self._score_on_dev.prepare()

    def prepare(self) -> None:
        """Add the adapters and load the examples."""
        config, training, loader = self.experiment, self._training, self.loader
        self._peft, self._model = model_in_training(config, loader.fresh_base(), self.seed, loader.frozen_layers)
        self._weights = weights = adapter_parameters(self._peft)
        self._optimizer = MasterAdamW(weights, training.weight_decay)
        peak = self._arm_config.learning_rate
        self._rates = learning_rates(training.steps, training.warmup, peak, training.schedule)
        batches = arm_batches(config, self._arm_config.task, self.seed, self._data, self._model)
        log = self.state.logs / "gradient_conflicts.jsonl"
        self._gradients = ArmGradients(config, self._arm_config, self._model, weights, batches, log, self._processes)

    def step(self, number: int) -> StepFacts:
        """Take one optimizer step: on the ranking batch, the embedding batch, or both."""
        start = time.perf_counter()
        torch.manual_seed(self.seed * 1_000_003 + number)  # dropout: a resumed step draws what the first try drew
        training = self._training
        found = self._gradients.add(number)
        spoilt = [task for task, loss in found.losses.items() if not math.isfinite(loss)]
        if spoilt:
            self._stop(number, f"the loss is {found.losses[spoilt[0]]}", spoilt)
        norm = self._optimizer.step(self._rates[number], training.max_grad_norm)
        if not math.isfinite(norm):
            self._stop(number, f"the gradient's norm is {norm}", list(found.losses))
        if overflow(self._weights.values()):
            self._stop(number, "the weights overflow", list(found.losses))
        self._gradients.aggregation.learn(found.losses)
        self.progress.count("tokens", found.tokens)
        return {
            "task": self._arm_config.task,
            "loss": found.total,
            "ranking_loss": found.losses.get("ranking"),
            "embedding_loss": found.losses.get("embedding"),
            "lr": self._rates[number],
            "grad_norm": norm,
            "tokens": found.tokens,
            "tokens_per_s": found.tokens / (time.perf_counter() - start),
        }

    def score_on_dev(self) -> tuple[float, StepFacts]:
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
        if self.progress.best_score is not None:
            self._refuse_other(self.best)
        self._optimizer.load_state(parts["optimizer"])
        self._gradients.aggregation.load_state(parts.get("aggregation", {}))

    def keep_best(self) -> None:
        """Write the best checkpoint."""
        self._save("best")

    def finish(self) -> None:
        """Write the last checkpoint."""
        self._save("last")

    def _save(self, which: Literal["best", "last"]) -> None:
        """Write a checkpoint: adapter, manifest, model card."""
        if not self._processes.leads:
            return
        training, task = self._training, self._arm_config.task
        batches = self.progress.step * training.accumulation_steps
        seen = TrainingBudget(
            steps=self.progress.step,
            ranking_examples=batches * training.ranking.queries_per_step if task != "emb_only" else 0,
            embedding_examples=batches * training.embedding.pairs_per_step if task != "rank_only" else 0,
            tokens=self.progress.extra.get("tokens", 0),
        )
        with atomic_dir(self.last if which == "last" else self.best) as temporary:
            # Without False, "auto" would ask the hub whether embedding layers belong to the adapter.
            self._peft.save_pretrained(temporary, save_embedding_layers=False)
            _write_masters(temporary / ADAPTER_FILE, self._optimizer.masters)
            name_base(temporary, base_on_hub(self.experiment), self.experiment.model.revision)
            checkpoint = Checkpoint(
                arm=self.arm,
                seed=self.seed,
                which=which,
                base_model=self.loader.identity,
                dtype=self.loader.dtype_name,
                fingerprint=self.state.fingerprint,
                adapter_hash=hash_file(temporary / ADAPTER_FILE),
                settings_hash=hash_file(temporary / ADAPTER_SETTINGS),
                training=seen,
                config=self.experiment.model_dump(),
            )
            write_text(temporary / "README.md", model_card(checkpoint, self._model))
            known = self._data.seen  # dev chooses the best alone
            (known if which == "best" else SeenQueries(train=known.train)).write(temporary)
            write_manifest(temporary, checkpoint)

    def _stop(self, step: int, what: str, tasks: Sequence[TrainingTask]) -> NoReturn:
        ids = self._gradients.query_ids(step, tasks)
        named = ", ".join(ids[:16]) + (f" and {len(ids) - 16} more" if len(ids) > 16 else "")
        raise DataError(
            f"{self.arm}, seed {self.seed}, step {step + 1}: {what}; its queries are {named}; lower the arm's "
            "learning_rate, or set model.dtype to float32 (what was saved before this step is kept)"
        )


def _write_masters(path: Path, masters: Mapping[str, Tensor]) -> None:
    """Put the float32 weights that were trained in place of the rounded copies that PEFT has just written."""
    rounded = safetensors.torch.load_file(path)
    weights = {name.replace(".default.", "."): value.contiguous() for name, value in masters.items()}
    if weights.keys() != rounded.keys():
        raise AssertionError(f"adapter names differ: {sorted(weights.keys() ^ rounded.keys())[:3]}")
    safetensors.torch.save_file(weights, path, {"format": "pt"})
