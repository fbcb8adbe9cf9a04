"""Trains a bi-encoder, chooses the best epoch on dev, and leaves two checkpoints: the best and the last.

    trainer = BiEncoderTrainer(load_config(BiEncoderConfig, Path("biencoder/default")), torch.device("cpu"))
    facts = trainer.fit()
    trainer.best_dir

The state is saved after every epoch, and every few steps where asked; a resumed training takes the same steps as an
undisturbed one, to the last bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import nn

from unimoe.checkpoint import folder_name
from unimoe.errors import DataError
from unimoe.io import append_jsonl, hash_json, write_text
from unimoe.models.device import choose_dtype
from unimoe.models.embedder import Advance
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.checkpoint import read_biencoder, save_checkpoint
from unimoe.studies.biencoder.training.losses import contrastive_loss
from unimoe.studies.biencoder.training.model import load_biencoder
from unimoe.studies.biencoder.training.negatives import HardNegatives
from unimoe.studies.biencoder.training.pairs import Batch, batches_per_epoch, epoch_batches, training_pairs
from unimoe.studies.biencoder.training.search import biencoder_splits, dev_collection, dev_score
from unimoe.studies.biencoder.training.sources import EncoderSource, FrozenSource, Source, cached_texts
from unimoe.studies.biencoder.training.state import (
    Progress,
    load_state,
    load_tensors,
    save_state,
    state_tensors,
)
from unimoe.studies.biencoder.training.steps import batch_backward
from unimoe.studies.common.splits import Splits
from unimoe.training.optimizer import learning_rate_at
from unimoe.training.state_files import refuse_other_settings

OnStep = Callable[[int, dict[str, float]], None]
"""Told the number of optimizer steps taken and what is logged of the last one."""

_NOT_DECISIVE = {"save_every", "output_dir", "caveats"}
_CHUNKS = 10_000  # more than a batch has: each chunk of each step draws its own dropout


class BiEncoderTrainer:
    """One training of a bi-encoder.

    Args:
        config: what to train, on what, and how.
        device: where to compute.
        splits: the collection in three parts; loaded by the config when absent.

    Attributes:
        pairs: what is trained on.
        dev: what chooses the epoch.
        best_dir: the checkpoint of the best epoch on dev, of epoch 0 until there is a better one.
        last_dir: the checkpoint of the last epoch; there once the training is finished.
        log_path: a line for every optimizer step.
        fingerprint: content hash of all that determines the training.

    Raises:
        DataError: the collection or the base cannot be had, or no query has a positive.
        UsageError: a split that does not exist, or a setting that the base does not allow.
    """

    def __init__(self, config: BiEncoderConfig, device: torch.device, splits: Splits | None = None) -> None:
        self.config, self.device = config, device
        self.splits = biencoder_splits(config) if splits is None else splits
        self.train = self.splits.train
        if config.train_queries is not None:
            self.train = self.train.sample_queries(config.train_queries)
        self.pairs = training_pairs(self.train, config.relevance_threshold)
        self.dev = dev_collection(self.splits.dev, config.dev, config.relevance_threshold)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.best_dir, self.last_dir = (folder / folder_name(which) for which in ("best", "last"))
        self.log_path, self.state_path = folder / "logs" / "train.jsonl", folder / "state.safetensors"
        self.model = load_biencoder(config, device)
        self.base_model = self.model.files.identity
        self._settings = {
            "config": config.model_dump(mode="json", exclude=_NOT_DECISIVE),
            "base": self.base_model,
            "train": self.train.content_hash,
            "dev": self.dev.content_hash,
        }
        self.fingerprint = hash_json(self._settings)
        self._negatives = HardNegatives(config, self.train, self.pairs, folder / "negatives", self.fingerprint)
        self._per_epoch = -(-batches_per_epoch(self.pairs, config) // config.accumulation)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.config.epochs * self._per_epoch

    def is_finished(self) -> bool:
        """Whether both checkpoints of this very training are there.

        Raises:
            DataError: one is of another training, which names the setting that differs, or damaged.
        """
        for folder in (self.best_dir, self.last_dir):
            if folder.exists():
                self._refuse_stranger(folder)
        return self.last_dir.exists()

    def _refuse_stranger(self, folder: Path) -> None:
        there = read_biencoder(folder)
        settings = there.settings.model_dump(mode="json", exclude=_NOT_DECISIVE)
        refuse_other_settings(folder, {"config": settings}, {"config": self._settings["config"]})
        if there.fingerprint != self.fingerprint:
            raise DataError(
                f"{folder} is of another training (the data or the base model differ); choose another output_dir, or "
                f"delete {folder.parent} to start over"
            )

    def fit(self, on_step: OnStep | None = None, advance: Advance | None = None) -> dict[str, float]:
        """Train, or find it trained.

        Args:
            on_step: told after every optimizer step.
            advance: called with the number of texts that a frozen base has embedded.

        Returns:
            ``start`` and ``val``, the metric on dev before training and at its best; ``epoch``, where that was; and
            ``seconds``, without looks at dev.

        Raises:
            DataError: a state or checkpoint in the folder is of another training; the loss is not finite.
        """
        if not self.is_finished():
            self._train(on_step, advance)
        return read_biencoder(self.best_dir).facts

    def _train(self, on_step: OnStep | None, advance: Advance | None) -> None:
        config = self.config
        weights = self.model.trainable()
        self._optimizer = torch.optim.AdamW(weights.values(), lr=0.0, weight_decay=config.weight_decay)
        self.progress = self._begin()
        self._source = self._make_source(advance)
        if self.progress.step == 0:
            self.progress.start = self.progress.val = dev_score(self._source, self.dev, config.dev.metric)
            self._save(self.best_dir, "best")
        self._cut_log()
        for epoch in range(self.progress.step // self._per_epoch, config.epochs):
            if config.dev.patience is not None and epoch - self.progress.epoch >= config.dev.patience:
                break
            done = self.progress.step % self._per_epoch
            negatives = self._negatives.of_epoch(epoch, self._source, begun=done > 0)
            batches = epoch_batches(self.pairs, config, epoch, negatives)
            for place in range(done, self._per_epoch):
                begin = place * config.accumulation
                facts = self._take_step(batches[begin : begin + config.accumulation])
                if on_step:
                    on_step(self.progress.step, facts)
                if self._is_saved_now():
                    self._save_state(weights)
        self._save(self.last_dir, "last")
        self.state_path.unlink(missing_ok=True)
        self._negatives.clear()

    def _begin(self) -> Progress:
        """Where the training stands: at its beginning, or where the saved state says."""
        if not self.state_path.exists():
            dtype = choose_dtype(self.device, self.config.precision)
            return Progress(dtype=str(dtype).removeprefix("torch."))
        progress, tensors = load_state(self.state_path, self._settings, self.device)
        load_tensors(tensors, self.model.trainable(), self._optimizer)
        return progress

    def _make_source(self, advance: Advance | None) -> Source:
        if not self.config.freeze_base:
            return EncoderSource(self.model, getattr(torch, self.progress.dtype))
        return FrozenSource(self.model, cached_texts(self.splits), advance)

    def _take_step(self, batches: Sequence[Batch]) -> dict[str, float]:
        config, start, step = self.config, time.perf_counter(), self.progress.step
        loss = sum(self._backward(batch, number, len(batches)) for number, batch in enumerate(batches)) / len(batches)
        rate = learning_rate_at(
            step, self.steps, min(round(config.warmup * self.steps), self.steps - 1), config.learning_rate,
            config.schedule,
        )  # fmt: skip
        norm = float(nn.utils.clip_grad_norm_(self.model.trainable().values(), config.max_grad_norm))
        if not math.isfinite(norm):
            self._refuse_not_finite("gradient's norm", norm, batches)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.seconds += time.perf_counter() - start
        facts = {
            "step": self.progress.step,
            "epoch": step // self._per_epoch + 1,
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "pairs": self.progress.pairs,
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
        }
        if self.progress.step % self._per_epoch == 0:
            facts["val"] = self._look_at_dev(step // self._per_epoch + 1)
        append_jsonl(self.log_path, facts)
        return facts

    def _backward(self, batch: Batch, number: int, count: int) -> float:
        """Add a batch's part of the step's gradient; returns its loss."""
        config = self.config
        queries = {self.pairs.query_ids[place]: self.pairs.texts[place] for place in batch.queries}
        documents = {key: self.train.corpus[key].full_text for key in batch.documents}
        inputs = self._source.inputs("query", queries), self._source.inputs("document", documents)
        positives, excluded = batch.positives.to(self.device), batch.excluded.to(self.device)
        loss = batch_backward(
            self._source,
            *inputs,
            lambda q, d: contrastive_loss(q, d, positives, excluded, config.loss),
            weight=1.0 / count,
            chunk_size=config.chunk_size,
            seed=((config.seed * 1_000_003 + self.progress.step) * config.accumulation + number) * _CHUNKS,
        )
        if not math.isfinite(loss):
            self._refuse_not_finite("loss", loss, [batch])
        self.progress.pairs += len(batch.queries)
        if not config.freeze_base:
            self.progress.tokens += sum(map(len, [*inputs[0], *inputs[1]]))
        return loss

    def _look_at_dev(self, epoch: int) -> float:
        value = dev_score(self._source, self.dev, self.config.dev.metric)
        if value > self.progress.val:
            self.progress.val, self.progress.epoch = value, epoch
            self._save(self.best_dir, "best")
        return value

    def _refuse_not_finite(self, what: str, value: float, batches: Sequence[Batch]) -> NoReturn:
        ids = [self.pairs.query_ids[place] for batch in batches for place in batch.queries]
        named = ", ".join(ids[:3]) + ", ..." * (len(ids) > 3)
        raise DataError(
            f"{self.config.arm}, seed {self.config.seed}, step {self.progress.step + 1}: the {what} is {value} in the "
            f"batch of the queries {named}; lower learning_rate, or set precision to float32; the best checkpoint so "
            f"far is {self.best_dir}"
        )

    def _is_saved_now(self) -> bool:
        step, every = self.progress.step, self.config.save_every
        return step < self.steps and (step % self._per_epoch == 0 or (every is not None and step % every == 0))

    def _save_state(self, weights: Mapping[str, nn.Parameter]) -> None:
        save_state(self.state_path, self._settings, self.progress, state_tensors(weights, self._optimizer))

    def _save(self, folder: Path, which: Literal["best", "last"]) -> None:
        progress = self.progress
        manifest = {
            "arm": self.config.arm,
            "seed": self.config.seed,
            "which": which,
            "base_model": self.base_model,
            "dtype": progress.dtype,
            "fingerprint": self.fingerprint,
            "facts": {
                "start": progress.start, "val": progress.val, "epoch": progress.epoch, "seconds": progress.seconds,
            },
            "training": TrainingBudget(
                steps=progress.step, ranking_examples=0, embedding_examples=progress.pairs, tokens=progress.tokens
            ),
            "config": self.config.model_dump(mode="json"),
        }  # fmt: skip
        save_checkpoint(folder, self.model, manifest)

    def _cut_log(self) -> None:
        """Keep the log of the steps already taken: those after the saved state are taken again."""
        lines = self.log_path.read_text(encoding="utf-8").splitlines() if self.log_path.exists() else []
        write_text(self.log_path, "".join(f"{line}\n" for line in lines[: self.progress.step]))
