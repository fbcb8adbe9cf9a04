"""Trains a cross-encoder through sentence-transformers' trainer, resumes it, and leaves a folder with a manifest."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from unimoe.errors import DataError
from unimoe.io import append_jsonl, atomic_dir, write_text
from unimoe.models.quiet import quiet_loading
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.model import find_cross_encoder, new_cross_encoder, weights_hash
from unimoe.studies.cross_encoder.reranking_set import RerankingSet
from unimoe.studies.cross_encoder.training.checkpoint import (
    CrossEncoderManifest,
    determining,
    fingerprint_of,
    read_manifest,
    refuse_other_training,
    write_manifest,
)
from unimoe.studies.cross_encoder.training.evaluator import MEAN, DevEvaluator
from unimoe.studies.cross_encoder.training.lists import Lists, as_columns
from unimoe.studies.cross_encoder.training.loss import CrossEncoderListLoss

OnStep = Callable[[int, int], None]
"""Called with the step taken and their total."""

TRAIN_LOG, DEV_LOG = "train.jsonl", "dev.jsonl"
"""A line per step, and a line per evaluation on dev."""

_STATE = "trainer_state.json"


class CrossEncoderTraining:
    """One training: where it writes, and whether it is done.

    Args:
        config: what to train and how.
        lists: what to train on, fit for the loss.
        dev: what chooses the checkpoint; none takes the last.
        device: where to train.

    Raises:
        DataError: the base cannot be had.
    """

    def __init__(
        self, config: CrossEncoderConfig, lists: Lists, dev: Sequence[RerankingSet], device: torch.device
    ) -> None:
        self.config, self._lists, self._dev, self.device = config, lists, tuple(dev), device
        self._base = find_cross_encoder(config.model)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.checkpoint_dir, self._work = folder / "checkpoint", folder / "trainer"
        self._logs = folder / "logs"
        self._content = {
            "lists": lists.content_hash,
            "dev": " ".join(one.content_hash for one in self._dev),
            "base": self._base.identity,
            "dtype": "bfloat16" if self._bfloat16 else "float32",
        }
        self.fingerprint = fingerprint_of(config, **self._content)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        per_epoch = -(-len(self._lists.lists) // self.config.batch_size)
        return self.config.max_steps or max(1, round(self.config.epochs * per_epoch))

    def finished(self) -> CrossEncoderManifest | None:
        """The manifest, where this very training is done.

        Raises:
            DataError: the folder is of another training, or damaged.
        """
        if not self.checkpoint_dir.exists():
            return None
        manifest = read_manifest(self.checkpoint_dir)
        if manifest.fingerprint != self.fingerprint:
            raise DataError(
                f"{self.checkpoint_dir} is of another training (config, lists or base model differ); "
                "choose another output_dir or arm, or delete it to start over"
            )
        return manifest

    def fit(self, on_step: OnStep | None = None) -> CrossEncoderManifest:
        """Train, or go on from the last saved state, or keep what is done.

        Raises:
            DataError: a saved state is of another training, a list cannot be used, or the loss is not finite.
        """
        done = self.finished()
        if done is not None:
            return done
        self._work.mkdir(parents=True, exist_ok=True)
        refuse_other_training(self._work / "training.json", determining(self.config), self._content)
        start = time.perf_counter()
        model = new_cross_encoder(self.config.model, self._base, self.config.seed, self.device)
        trainer, loss = self._trainer(model, on_step)
        state = self._last_state()
        self._cut_logs(0 if state is None else _step_of(state))
        with quiet_loading():
            trainer.train(resume_from_checkpoint=str(state) if state else None)
        return self._finish(model, trainer.state, loss, time.perf_counter() - start)

    @property
    def _bfloat16(self) -> bool:
        if self.config.dtype == "auto":
            return self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return self.config.dtype == "bfloat16"

    def _trainer(self, model: CrossEncoder, on_step: OnStep | None) -> tuple[CrossEncoderTrainer, CrossEncoderListLoss]:
        config, has_dev = self.config, bool(self._dev)
        arguments = CrossEncoderTrainingArguments(
            output_dir=str(self._work),
            num_train_epochs=config.epochs,
            max_steps=self.steps,
            per_device_train_batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            warmup_steps=round(config.warmup_ratio * self.steps),
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            seed=config.seed,
            bf16=self._bfloat16,
            use_cpu=self.device.type == "cpu",
            eval_strategy="steps" if has_dev else "no",
            eval_steps=config.eval_every,
            save_strategy="steps",
            save_steps=config.eval_every,
            save_total_limit=config.keep,
            load_best_model_at_end=has_dev,
            metric_for_best_model=f"eval_{MEAN}" if has_dev else None,
            greater_is_better=True if has_dev else None,
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=self.device.type == "cuda",
        )
        loss = CrossEncoderListLoss(model, config.loss)
        trainer = CrossEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(as_columns(self._lists.lists)),
            loss=loss,
            evaluator=DevEvaluator(self._dev, config.evaluation.batch_size) if has_dev else None,
            callbacks=[_Watch(loss, self._logs, on_step)],
        )
        trainer.remove_callback(PrinterCallback)  # it would print every line of the log on stdout
        return trainer, loss

    def _last_state(self) -> Path | None:
        """The newest whole state; what a kill left half-written is removed."""
        whole = []
        for folder in self._work.glob("checkpoint-*"):
            try:
                json.loads((folder / _STATE).read_text(encoding="utf-8"))  # the trainer writes it last
                whole.append(folder)
            except (OSError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)
        return max(whole, key=_step_of, default=None)

    def _cut_logs(self, step: int) -> None:
        """Keep the lines of the steps that the saved state has seen."""
        for path in (self._logs / TRAIN_LOG, self._logs / DEV_LOG):
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            write_text(path, "".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= step))

    def _finish(
        self, model: CrossEncoder, state: TrainerState, loss: CrossEncoderListLoss, seconds: float
    ) -> CrossEncoderManifest:
        with atomic_dir(self.checkpoint_dir) as temporary:
            with quiet_loading():
                model.save_pretrained(str(temporary))
            manifest = CrossEncoderManifest(
                arm=self.config.arm,
                seed=self.config.seed,
                which="best" if self._dev else "last",
                base_model=self._base.identity,
                fingerprint=self.fingerprint,
                weights_hash=weights_hash(temporary),
                dev=state.best_metric if self._dev else None,
                training=TrainingBudget(
                    steps=state.global_step,
                    ranking_examples=min(state.global_step * self.config.batch_size, self._examples(state)),
                    embedding_examples=0,
                    tokens=loss.tokens,
                ),
                seconds=seconds,
                config=self.config.model_dump(),
            )
            write_manifest(temporary, manifest)
        shutil.rmtree(self._work, ignore_errors=True)
        return manifest

    def _examples(self, state: TrainerState) -> int:
        """Lists seen: the last batch of an epoch may be smaller."""
        per_epoch = -(-len(self._lists.lists) // self.config.batch_size)
        epochs, rest = divmod(state.global_step, per_epoch)
        return epochs * len(self._lists.lists) + rest * self.config.batch_size


class _Watch(TrainerCallback):
    """Writes the logs, tells of steps, and keeps the count of tokens in the saved state."""

    def __init__(self, loss: CrossEncoderListLoss, logs: Path, on_step: OnStep | None) -> None:
        self._loss, self._logs, self._on_step = loss, logs, on_step

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._loss.tokens = state.num_input_tokens_seen
        if self._on_step and state.global_step:
            self._on_step(state.global_step, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.num_input_tokens_seen = self._loss.tokens
        if self._on_step:
            self._on_step(state.global_step, state.max_steps)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        numbers = {key: value for key, value in given["logs"].items() if _is_number(value)}
        if "loss" in numbers:
            record = {"step": state.global_step, "loss": numbers["loss"], "lr": numbers["learning_rate"]}
            append_jsonl(self._logs / TRAIN_LOG, record | {"grad_norm": numbers.get("grad_norm")})
        scores = {key.removeprefix("eval_"): value for key, value in numbers.items() if "@" in key or "_map" in key}
        if scores:
            append_jsonl(self._logs / DEV_LOG, {"step": state.global_step, **scores})


def _step_of(state: Path) -> int:
    return int(state.name.rpartition("-")[2])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(torch.tensor(float(value)).isfinite())
