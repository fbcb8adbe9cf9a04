"""Trains a cross-encoder with sentence-transformers' trainer, resumes it, and writes a folder with a manifest."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from unimoe.core.io import Strict, atomic_dir, hash_files, hash_json, read_json, write_json
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.reranking.shards import rerank_run
from unimoe.metrics import score_run
from unimoe.models.model_files import weights_hash
from unimoe.models.quiet import quiet_loading
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.model import find_cross_encoder, new_cross_encoder
from unimoe.studies.cross_encoder.reranking_set import RerankingSet
from unimoe.studies.cross_encoder.training.checkpoint import (
    MANIFEST,
    CrossEncoderManifest,
    determining,
    last_state,
    read_manifest,
    seal_state,
    seconds_of,
    step_of,
    write_manifest,
)
from unimoe.studies.cross_encoder.training.lists import Lists, as_columns
from unimoe.studies.cross_encoder.training.loss import CrossEncoderListLoss
from unimoe.training.run_state import RunState

OnStep = Callable[[int, int], None]
"""Called with the step taken and their total."""

_MEAN = "mean_ndcg@10"
"""The score that chooses the checkpoint."""

_METRICS = ("ndcg@10", "mrr@10", "map")


class _Training(Strict):
    fingerprint: str
    settings: dict[str, Any]


class CrossEncoderTraining:
    """Trains one cross-encoder.

    Args:
        config: of the training.
        lists: to train on, fit for the loss.
        dev: these choose the checkpoint; without any it is the last.
        device: of the training.

    Raises:
        DataError: the base cannot be loaded.
    """

    def __init__(
        self, config: CrossEncoderConfig, lists: Lists, dev: Sequence[RerankingSet], device: torch.device
    ) -> None:
        self.config, self._lists, self._dev, self.device = config, lists, tuple(dev), device
        self._base = find_cross_encoder(config.model)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.checkpoint_dir, self._work = folder / "checkpoint", folder / "trainer"
        content = {
            "lists": lists.content_hash,
            "dev": " ".join(one.content_hash for one in self._dev),
            "base": self._base.identity,
            "dtype": "bfloat16" if self._bfloat16 else "float32",
        }
        settings = {"config": determining(config.model_dump()), "content": content}
        # No progress of ours: sentence-transformers' trainer saves its own in self._work.
        self._state = RunState(folder, settings, hash_json(list(settings.values())), type(None))

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        per_epoch = -(-len(self._lists.lists) // self.config.batch_size)
        return self.config.max_steps or max(1, round(self.config.epochs * per_epoch))

    @property
    def fingerprint(self) -> str:
        """Content hash of everything that determines the training."""
        return self._state.fingerprint

    def finished(self) -> CrossEncoderManifest | None:
        """Return the manifest of this training; None before it is finished.

        Raises:
            DataError: the folder is damaged, or of another training.
        """
        if not self.checkpoint_dir.exists():
            return None
        manifest = read_manifest(self.checkpoint_dir)
        self._state.refuse_other(self.checkpoint_dir, manifest.fingerprint, {"config": determining(manifest.config)})
        return manifest

    def fit(self, on_step: OnStep | None = None) -> CrossEncoderManifest:
        """Train, from the last saved state where there is one, unless the training is finished.

        Raises:
            DataError: a saved state is of another training, a list cannot be used, or the loss is not finite.
        """
        with self._state.alone():
            return self.finished() or self._train(on_step)

    def make_room(self) -> None:
        """Remove what an unfinished training left, so that a worker's files take its place.

        Raises:
            DataError: it is of another training.
        """
        with self._state.alone():
            self._claim_folder()
            shutil.rmtree(self._work)
            if (self.checkpoint_dir / MANIFEST).exists():
                self.finished()
            else:
                shutil.rmtree(self.checkpoint_dir, ignore_errors=True)

    def _train(self, on_step: OnStep | None) -> CrossEncoderManifest:
        self._claim_folder()
        state = last_state(self._work)
        start = time.perf_counter() - (0.0 if state is None else seconds_of(state))
        model = new_cross_encoder(self.config.model, self._base, self.config.seed, self.device)
        trainer, loss = self._trainer(model, on_step, start)
        self._state.cut_logs(0 if state is None else step_of(state))
        with quiet_loading():
            if state is not None and step_of(state) >= self.steps:
                _load_finished(trainer, loss, state)
            else:
                trainer.train(resume_from_checkpoint=str(state) if state else None)
        return self._finish(model, trainer.state, loss, time.perf_counter() - start)

    def _claim_folder(self) -> None:
        """Refuse the saved states of another training; note in their folder that they are of this one."""
        note = self._work / "training.json"
        if note.exists():
            there = read_json(note, _Training)
            self._state.refuse_other(self._work, there.fingerprint, there.settings)
        else:
            write_json(note, {"fingerprint": self._state.fingerprint, "settings": self._state.settings})

    @property
    def _bfloat16(self) -> bool:
        if self.config.dtype == "auto":
            return self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return self.config.dtype == "bfloat16"

    def _trainer(
        self, model: CrossEncoder, on_step: OnStep | None, start: float
    ) -> tuple[CrossEncoderTrainer, CrossEncoderListLoss]:
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
            metric_for_best_model=f"eval_{_MEAN}" if has_dev else None,
            greater_is_better=True if has_dev else None,
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=self.device.type == "cuda",
        )
        loss = CrossEncoderListLoss(model, config.loss, config.seed)
        trainer = CrossEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(as_columns(self._lists.lists)),
            loss=loss,
            evaluator=_DevEvaluator(self._dev, config.evaluation.batch_size) if has_dev else None,
            callbacks=[_Watch(loss, self._state, on_step, start)],
        )
        trainer.remove_callback(PrinterCallback)  # it would print every line of the log on stdout
        return trainer, loss

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
                fingerprint=self._state.fingerprint,
                weights_hash=weights_hash(temporary),
                files=hash_files(temporary, but=["README.md"]),
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
        """Return the number of lists seen; the last batch of an epoch may be smaller."""
        per_epoch = -(-len(self._lists.lists) // self.config.batch_size)
        epochs, rest = divmod(state.global_step, per_epoch)
        return epochs * len(self._lists.lists) + rest * self.config.batch_size


def _load_finished(trainer: CrossEncoderTrainer, loss: CrossEncoderListLoss, state: Path) -> None:
    """Give a trainer what it had after its last step, from which it would take another one."""
    trainer.state = TrainerState.load_from_json(str(state / TRAINER_STATE_NAME))
    loss.tokens = trainer.state.num_input_tokens_seen
    trainer._load_from_checkpoint(trainer.state.best_model_checkpoint or str(state))


class _DevEvaluator(BaseEvaluator):
    """Reranks dev sets as evaluation does; scores nDCG@10, MRR@10 and MAP of each, and their mean nDCG@10."""

    def __init__(self, sets: Sequence[RerankingSet], batch_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sets, self._batch_size = tuple(sets), batch_size
        self.primary_metric = _MEAN

    def __call__(self, model: Any, *_args: Any, **_options: Any) -> dict[str, float]:
        """``{"scifact_ndcg@10": .., ..., "mean_ndcg@10": ..}``."""
        found: dict[str, float] = {}
        means, reranker = [], CrossEncoderReranker(model, self._batch_size)
        for data in self._sets:
            run, _scored = rerank_run(reranker, data.collection, data.candidates)
            scores = score_run(data.collection.qrels, run, _METRICS, data.collection.relevance_level).aggregate
            found |= {f"{data.name}_{metric}": scores[metric] for metric in _METRICS}
            means.append(scores["ndcg@10"])
        return found | {_MEAN: sum(means) / len(means)}


class _Watch(TrainerCallback):
    """Writes the logs, reports steps, and keeps in the states their hashes, the count of tokens and the seconds."""

    def __init__(self, loss: CrossEncoderListLoss, state: RunState[Any], on_step: OnStep | None, start: float) -> None:
        self._loss, self._state, self._on_step, self._start = loss, state, on_step, start

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._loss.tokens = state.num_input_tokens_seen
        if self._on_step and state.global_step:
            self._on_step(state.global_step, state.max_steps)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._loss.begin_step(state.global_step, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.num_input_tokens_seen = self._loss.tokens
        if self._on_step:
            self._on_step(state.global_step, state.max_steps)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        folder = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        seal_state(folder, time.perf_counter() - self._start)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        numbers = {key: value for key, value in given["logs"].items() if _is_number(value)}
        if "loss" in numbers:
            record = {"step": state.global_step, "loss": numbers["loss"], "lr": numbers["learning_rate"]}
            self._state.log(record | {"grad_norm": numbers.get("grad_norm")})
        scores = {key.removeprefix("eval_"): value for key, value in numbers.items() if "@" in key or "_map" in key}
        if scores:
            self._state.log({"step": state.global_step, **scores}, "dev")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(torch.tensor(float(value)).isfinite())
