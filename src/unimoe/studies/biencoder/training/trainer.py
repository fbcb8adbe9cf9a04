"""The training of a bi-encoder: the best epoch is chosen on dev; the best and the last checkpoint are written.

    trainer = BiEncoderTrainer(load_config(BiEncoderConfig, Path("biencoder/default")), torch.device("cpu"))
    facts = trainer.fit()
    trainer.best_dir

The state is saved after every epoch, and every ``save_every`` steps. On a CPU, a resumed training takes the same steps
as an undisturbed one, bit for bit.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import nn

from unimoe.core.errors import DataError, first_few
from unimoe.core.io import hash_json
from unimoe.models.checkpoint import folder_name
from unimoe.models.device import choose_dtype
from unimoe.models.embedder import Advance
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.checkpoint import MANIFEST, read_biencoder, save_checkpoint
from unimoe.studies.biencoder.training.losses import contrastive_loss
from unimoe.studies.biencoder.training.model import load_biencoder
from unimoe.studies.biencoder.training.pairs import (
    Batch,
    batches_per_epoch,
    biencoder_splits,
    dev_collection,
    epoch_batches,
    training_pairs,
)
from unimoe.studies.biencoder.training.search import HardNegatives, dev_score
from unimoe.studies.biencoder.training.sources import EncoderSource, FrozenSource, Source, cached_texts
from unimoe.studies.biencoder.training.steps import batch_backward
from unimoe.studies.common.splits import Splits
from unimoe.training.optimizer import learning_rate_at, optimizer_tensors, restore_optimizer
from unimoe.training.run_state import RunState

OnStep = Callable[[int, dict[str, float]], None]
"""Called with the number of optimizer steps taken and the log record of the last one."""

_WITHOUT_EFFECT = {"save_every", "output_dir", "caveats"}
_CHUNKS = 10_000  # more than a batch has: each chunk of each step draws its own dropout


@dataclass
class Progress:
    """How far the training of a bi-encoder is.

    Attributes:
        step: optimizer steps taken.
        pairs: training pairs seen.
        tokens: tokens seen, padding not counted; 0 where the base is frozen.
        start: the metric on dev before training.
        val: the best since then.
        epoch: the epoch after which it was seen; 0 is before training.
        seconds: of the steps, without evaluations on dev.
        dtype: of the forward passes; a resumed training keeps it, even on a machine that would choose another.
    """

    step: int = 0
    pairs: int = 0
    tokens: int = 0
    start: float = 0.0
    val: float = 0.0
    epoch: int = 0
    seconds: float = 0.0
    dtype: str = "float32"


class BiEncoderTrainer:
    """Trains one bi-encoder.

    Args:
        config: of the training.
        device: of the forward and backward passes.
        splits: train, dev and test; loaded as the config says when absent.

    Attributes:
        pairs: the training queries with their positives.
        dev: the collection that chooses the epoch.
        best_dir: the checkpoint of the best epoch on dev, of epoch 0 until there is a better one.
        last_dir: the checkpoint of the last epoch, written when the training is finished.
        state: of the training in progress.

    Raises:
        DataError: the collection or the base cannot be loaded, or no query has a positive.
        UsageError: a split does not exist, or the base does not allow a setting.
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
        self.model = load_biencoder(config, device)
        self.base_model = self.model.base.base_identity
        settings = {
            "config": config.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
            "base": self.base_model,
            "train": self.train.content_hash,
            "dev": self.dev.content_hash,
        }
        self.state = RunState(folder, settings, hash_json(settings), Progress)
        self._negatives = HardNegatives(config, self.train, self.pairs, folder / "negatives", self.state.fingerprint)
        self._per_epoch = -(-batches_per_epoch(self.pairs, config) // config.accumulation)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.config.epochs * self._per_epoch

    def is_finished(self) -> bool:
        """Return whether both checkpoints of this training exist.

        Raises:
            DataError: one is damaged, or of another training; names the setting that differs.
        """
        for folder in (self.best_dir, self.last_dir):
            if folder.exists():
                there = read_biencoder(folder)
                config = there.settings.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
                self.state.refuse_other(folder, there.fingerprint, {"config": config})
        return self.last_dir.exists()

    def fit(self, on_step: OnStep | None = None, advance: Advance | None = None) -> dict[str, float]:
        """Train unless that is done.

        Args:
            on_step: called after every optimizer step.
            advance: called with the number of texts that a frozen base has embedded.

        Returns:
            ``start`` and ``val``, the metric on dev before training and at its best; ``epoch``, when it was at its
            best; and ``seconds``, without evaluations on dev.

        Raises:
            DataError: a state or checkpoint in the folder is of another training; the loss is not finite.
        """
        with self.state.alone():
            if not self.is_finished():
                self._train(on_step, advance)
        return read_biencoder(self.best_dir).facts

    def make_room(self) -> None:
        """Remove what an unfinished training left, and halves of a worker's files, so that a worker's take their place.

        Raises:
            DataError: it is of another training.
        """
        folders = (self.best_dir, self.last_dir)
        with self.state.alone():
            for folder in folders:
                if not (folder / MANIFEST).exists():
                    shutil.rmtree(folder, ignore_errors=True)
            self.state.load()
            if not self.is_finished():
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)
            self.state.delete()
            self._negatives.clear()

    def _train(self, on_step: OnStep | None, advance: Advance | None) -> None:
        config = self.config
        self._weights = self.model.trainable()
        self._optimizer = torch.optim.AdamW(self._weights.values(), lr=0.0, weight_decay=config.weight_decay)
        self.progress = self._resume()
        self._source = self._make_source(advance)
        if self.progress.step == 0:
            self.progress.start = self.progress.val = dev_score(self._source, self.dev, config.dev.metric)
            self._save(self.best_dir, "best")
        self.state.cut_logs(self.progress.step)
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
                    self.state.save(self.progress, weights=self._weights, optimizer=optimizer_tensors(self._optimizer))
        self._save(self.last_dir, "last")
        self.state.delete()
        self._negatives.clear()

    def _resume(self) -> Progress:
        saved = self.state.load()
        if saved is None:
            dtype = choose_dtype(self.device, self.config.precision, trains=True)
            return Progress(dtype=str(dtype).removeprefix("torch."))
        progress, parts = saved
        for name, weight in self._weights.items():
            weight.data.copy_(parts["weights"][name])
        restore_optimizer(self._optimizer, parts.get("optimizer", {}))
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
        norm = float(nn.utils.clip_grad_norm_(self._weights.values(), config.max_grad_norm))
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
            facts["val"] = self._evaluate(step // self._per_epoch + 1)
        self.state.log(facts)
        return facts

    def _backward(self, batch: Batch, number: int, count: int) -> float:
        """Add a batch's part of the step's gradient and return the loss of the batch."""
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

    def _evaluate(self, epoch: int) -> float:
        value = dev_score(self._source, self.dev, self.config.dev.metric)
        if value > self.progress.val:
            self.progress.val, self.progress.epoch = value, epoch
            self._save(self.best_dir, "best")
        return value

    def _refuse_not_finite(self, what: str, value: float, batches: Sequence[Batch]) -> NoReturn:
        ids = [self.pairs.query_ids[place] for batch in batches for place in batch.queries]
        raise DataError(
            f"{self.config.arm}, seed {self.config.seed}, step {self.progress.step + 1}: the {what} is {value} in the "
            f"batch of the queries {first_few(ids)}; lower learning_rate, or set precision to float32; the best "
            f"checkpoint so far is {self.best_dir}"
        )

    def _is_saved_now(self) -> bool:
        step, every = self.progress.step, self.config.save_every
        return step < self.steps and (step % self._per_epoch == 0 or (every is not None and step % every == 0))

    def _save(self, folder: Path, which: Literal["best", "last"]) -> None:
        progress = self.progress
        manifest = {
            "arm": self.config.arm,
            "seed": self.config.seed,
            "which": which,
            "base_model": self.base_model,
            "dtype": progress.dtype,
            "fingerprint": self.state.fingerprint,
            "facts": {
                "start": progress.start, "val": progress.val, "epoch": progress.epoch, "seconds": progress.seconds,
            },
            "training": TrainingBudget(
                steps=progress.step, ranking_examples=0, embedding_examples=progress.pairs, tokens=progress.tokens
            ),
            "config": self.config.model_dump(mode="json"),
        }  # fmt: skip
        save_checkpoint(folder, self.model, manifest)
