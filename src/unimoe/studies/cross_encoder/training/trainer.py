"""Trains a cross-encoder on lists of documents, and writes a folder of sentence-transformers with a manifest.

The steps are those of sentence-transformers' own trainer to the bit: its order of batches, AdamW, and schedule.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from unimoe.core.io import atomic_dir, hash_files, hash_json
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.reranking.shards import rerank_run
from unimoe.metrics import score_run
from unimoe.models.model_files import weights_hash
from unimoe.models.quiet import silence_transformers
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.model import find_cross_encoder, new_cross_encoder
from unimoe.studies.cross_encoder.reranking_set import RerankingSet
from unimoe.studies.cross_encoder.training.checkpoint import (
    MANIFEST,
    CrossEncoderManifest,
    determining,
    read_manifest,
    write_manifest,
)
from unimoe.studies.cross_encoder.training.lists import Lists, as_columns
from unimoe.studies.cross_encoder.training.loss import CrossEncoderListLoss
from unimoe.training.loop import Facts, OnStep, Training
from unimoe.training.optimizer import optimizer_tensors, restore_optimizer
from unimoe.training.run_state import Parts, RunState

_METRICS = ("ndcg@10", "mrr@10", "map")


class CrossEncoderTraining(Training):
    """Trains one cross-encoder.

    Args:
        config: of the training.
        lists: to train on, fit for the loss.
        dev: these choose the checkpoint; without any it is the last.
        device: of the training.

    Raises:
        DataError: the base cannot be loaded.
    """

    dev_log: ClassVar[str] = "dev"

    def __init__(
        self, config: CrossEncoderConfig, lists: Lists, dev: Sequence[RerankingSet], device: torch.device
    ) -> None:
        self.config, self._lists, self._dev, self.device = config, lists, tuple(dev), device
        self._base = find_cross_encoder(config.model)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.checkpoint_dir = folder / "checkpoint"
        self._bfloat16 = config.dtype == "bfloat16"
        if config.dtype == "auto":
            self._bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        content = {
            "lists": lists.content_hash,
            "dev": " ".join(one.content_hash for one in self._dev),
            "base": self._base.identity,
            "dtype": "bfloat16" if self._bfloat16 else "float32",
        }
        settings = {"config": determining(config.model_dump()), "content": content}
        self._per_epoch = -(-len(lists.lists) // config.batch_size)
        super().__init__(
            RunState(folder, settings, hash_json(list(settings.values()))),
            config.max_steps or max(1, round(config.epochs * self._per_epoch)),
            dev_every=config.eval_every if dev else None,
            save_every=config.eval_every,
        )

    @property
    def fingerprint(self) -> str:
        """Content hash of everything that determines the training."""
        return self.state.fingerprint

    @property
    def outputs(self) -> Sequence[Path]:
        """The manifest of the checkpoint."""
        return (self.checkpoint_dir / MANIFEST,)

    def finished(self) -> CrossEncoderManifest | None:
        """Return the manifest of this training; None before it is finished.

        Raises:
            DataError: the folder is damaged, or of another training.
        """
        if not self.checkpoint_dir.exists():
            return None
        manifest = read_manifest(self.checkpoint_dir)
        self.state.refuse_other(self.checkpoint_dir, manifest.fingerprint, {"config": determining(manifest.config)})
        return manifest

    def is_finished(self) -> bool:
        """Return whether the checkpoint exists; raises as ``finished``."""
        return self.finished() is not None

    def fit(self, on_step: OnStep | None = None) -> CrossEncoderManifest:
        """Train, from the saved state where there is one, unless the training is finished.

        Raises:
            DataError: a saved state is of another training, a list cannot be used, or the loss is not finite.
        """
        self.run(on_step)
        return read_manifest(self.checkpoint_dir)

    def prepare(self) -> None:
        """Make the model, its loss and its optimizer."""
        from transformers import get_linear_schedule_with_warmup, set_seed

        config = self.config
        self._model = new_cross_encoder(config.model, self._base, config.seed, self.device)
        set_seed(config.seed)  # again, as the head may have drawn more or fewer numbers
        self._loss = CrossEncoderListLoss(self._model, config.loss, config.seed, bfloat16=self._bfloat16)
        trained = [(name, weight) for name, weight in self._model.named_parameters() if weight.requires_grad]
        decays = [weight.ndim > 1 and "bias" not in name for name, weight in trained]
        groups = [
            {"params": [weight for (_, weight), decay in zip(trained, decays, strict=True) if decay is kind],
             "weight_decay": config.weight_decay if kind else 0.0}
            for kind in (True, False)
        ]  # fmt: skip
        self._optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
        warmup = round(config.warmup_ratio * self.steps)
        schedule = get_linear_schedule_with_warmup(self._optimizer, warmup, self.steps)  # type: ignore[no-untyped-call]
        self._rate_at = schedule.lr_lambdas[0]
        self._epoch, self._order = -1, list[int]()
        self._best: dict[str, torch.Tensor] = {}

    def begin_step(self, number: int) -> None:
        """Shuffle the lists of an epoch; its order depends on seed and epoch alone."""
        epoch, place = divmod(number, self._per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.config.seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self._lists.lists), generator=generator).tolist()
            if place == 0:
                _begin_loader()

    def step(self, number: int) -> Facts:
        """Take a step on the lists of a batch."""
        config, place = self.config, number % self._per_epoch
        rows = self._order[place * config.batch_size : (place + 1) * config.batch_size]
        batch = [self._lists.lists[row] for row in rows]
        columns = as_columns(batch)
        labels = [torch.tensor(row) for row in columns.pop("labels")]
        self._model.train()
        self._loss.begin_step(number, self.steps)
        loss = self._loss([*columns.values()], labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
        rate = config.learning_rate * self._rate_at(number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.progress.count("lists", len(batch))
        self.progress.extra["tokens"] = self._loss.tokens
        return {"loss": float(loss.detach()), "lr": rate, "grad_norm": float(norm) if norm.isfinite() else None}

    def score_on_dev(self) -> tuple[float, Facts]:
        """Rerank the dev sets as evaluation does; return their mean nDCG@10, and all measures of each."""
        begin, found = time.perf_counter(), Facts()
        reranker = CrossEncoderReranker(self._model, self.config.evaluation.batch_size)
        for data in self._dev:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
                run, _ = rerank_run(reranker, data.collection, data.candidates)
            scores = score_run(data.collection.qrels, run, _METRICS, data.collection.relevance_level).aggregate
            found |= {f"{data.name}_{metric}": scores[metric] for metric in _METRICS}
        _begin_loader()
        mean = sum(found[f"{data.name}_ndcg@10"] for data in self._dev) / len(self._dev)
        self.progress.extra["dev_seconds"] = self.progress.extra.get("dev_seconds", 0.0) + time.perf_counter() - begin
        return mean, {**found, "mean_ndcg@10": mean}

    def keep_best(self) -> None:
        """Copy the weights."""
        self._best = {name: weight.detach().cpu().clone() for name, weight in self._model.state_dict().items()}

    def parts(self) -> Parts:
        """Return the weights, the best ones, the optimizer's moments, and the random numbers of dropout."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
            "weights": self._model.state_dict(),
            "best": self._best,
            "optimizer": optimizer_tensors(self._optimizer),
            "random": random,
        }

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned."""
        self._model.load_state_dict(parts["weights"])
        self._best = dict(parts.get("best", {}))
        restore_optimizer(self._optimizer, parts["optimizer"])
        self._loss.tokens = self.progress.extra["tokens"]
        torch.set_rng_state(parts["random"]["cpu"])
        if "cuda" in parts["random"] and self.device.type == "cuda":
            torch.cuda.set_rng_state(parts["random"]["cuda"], self.device)

    def finish(self) -> None:
        """Write the best model, with its card and manifest."""
        progress = self.progress
        if self._best:
            self._model.load_state_dict(self._best)
        self._fill_card()
        with atomic_dir(self.checkpoint_dir) as temporary:
            with silence_transformers():
                self._model.save_pretrained(str(temporary))
            manifest = CrossEncoderManifest(
                arm=self.config.arm,
                seed=self.config.seed,
                which="best" if self._dev else "last",
                base_model=self._base.identity,
                fingerprint=self.state.fingerprint,
                weights_hash=weights_hash(temporary),
                files=hash_files(temporary, but=["README.md"]),
                dev=progress.best_score,
                training=TrainingBudget(
                    steps=progress.step,
                    ranking_examples=progress.extra["lists"],
                    embedding_examples=0,
                    tokens=progress.extra["tokens"],
                ),
                seconds=progress.seconds + progress.extra.get("dev_seconds", 0.0),
                config=self.config.model_dump(),
            )
            write_manifest(temporary, manifest)

    def _fill_card(self) -> None:
        """Say in the model's card what it was trained on, and how."""
        from datasets import Dataset

        card, config = self._model.model_card_data, self.config
        data = Dataset.from_dict(as_columns(self._lists.lists))
        with silence_transformers():
            card.train_datasets = card.extract_dataset_metadata(data, card.train_datasets, self._loss, "train")
        card.set_losses([self._loss])
        names = ("learning_rate", "batch_size", "warmup_ratio", "weight_decay", "max_grad_norm", "seed")
        card.non_default_hyperparameters = {name: getattr(config, name) for name in names} | {"steps": self.steps}


def _begin_loader() -> None:
    """Draw the number that a DataLoader draws at its beginning, so that dropout is that of the library's trainer."""
    torch.empty((), dtype=torch.int64).random_()
