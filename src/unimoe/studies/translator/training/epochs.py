"""The epochs of a training: what is there while it runs, and what it leaves after each of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.errors import DataError, InputError, UnimoeError
from unimoe.io import append_jsonl, write_text
from unimoe.studies.translator.config import BASES
from unimoe.studies.translator.models.files import save_translator
from unimoe.studies.translator.models.interface import LinearMap
from unimoe.studies.translator.models.networks import (
    NetworkTranslator,
    Scales,
    TranslatorNetwork,
    count_parameters,
    make_network,
)
from unimoe.studies.translator.training.checkpoints import NETWORK, evaluate
from unimoe.studies.translator.training.closed_forms import linear_map
from unimoe.studies.translator.training.objectives import Batch, Objective
from unimoe.studies.translator.training.sampler import epoch_batches
from unimoe.studies.translator.training.schedule import is_unfrozen, make_optimizer, recent_of, temperature_of, unfreeze
from unimoe.studies.translator.training.state import (
    Progress,
    load_state,
    optimizer_tensors,
    restore_optimizer,
    save_state,
)
from unimoe.studies.translator.training.training import TranslatorTraining

OnBatch = Callable[[int, float], None]
"""Told the number of batches done in all, and the loss of the last one."""


def train_epochs(trainer: TranslatorTraining, on_batch: OnBatch | None) -> None:
    """Train a network to its last epoch, from the saved state where there is one; errors are those of ``fit``."""
    _Run(trainer, on_batch).epochs()


class _Run:
    """A network in training, with its data on the device."""

    def __init__(self, trainer: TranslatorTraining, on_batch: OnBatch | None) -> None:
        self._trainer, self._on_batch = trainer, on_batch
        config, train, device = trainer.config, trainer.train, trainer.device
        base = BASES.get(config.model)
        fitted: LinearMap | None = linear_map(base, train, config) if base else None
        scales = Scales.of(train.captions, train.images)
        self._network = make_network(config.model, scales, config.hidden, config.seed, fitted).to(device)
        self._notes = fitted.notes if fitted else ()
        self._centre: NDArray[np.float64] | None = scales.image_mean if config.centre else None
        self._offset = torch.zeros(train.images.shape[1])
        if self._centre is not None:
            self._offset = torch.from_numpy(self._centre.astype(np.float32))
        self._offset = self._offset.to(device)
        self._captions = torch.from_numpy(np.ascontiguousarray(train.captions)).to(device)
        self._image_of = torch.from_numpy(train.image_of).to(device)
        images = torch.from_numpy(np.ascontiguousarray(train.images)).to(device)
        self._objective = Objective(config.loss, normalize(images - self._offset, dim=1), len(train))
        self._optimizer = make_optimizer(self._network, config)
        self._unfrozen = False
        self._best = copy.deepcopy(self._network.state_dict())

    def epochs(self) -> None:
        """Train to the last epoch, from the saved state where there is one."""
        trainer, config = self._trainer, self._trainer.config
        progress = self._resume() if trainer.state_path.exists() else self._begin()
        _cut_log(trainer.log_path, progress.epoch)
        while progress.epoch < config.epochs:
            try:
                self._epoch(progress)
            except UnimoeError:
                self._keep(progress, finished=False)
                raise
            if progress.epoch < config.epochs and progress.epoch % config.save_every == 0:
                parts = {"network": self._network.state_dict(), "best": self._best}
                parts |= {"optimizer": optimizer_tensors(self._optimizer), "objective": self._objective.state()}
                save_state(trainer.state_path, trainer.fingerprint, progress, parts)
        self._keep(progress, finished=True)
        save_translator(trainer.last, NETWORK, self._as_translator(self._network).tensors(), {"epoch": config.epochs})
        trainer.state_path.unlink(missing_ok=True)

    def _begin(self) -> Progress:
        value = self._validate()["mrr"]
        return Progress(start_value=value, best_value=value)

    def _resume(self) -> Progress:
        trainer = self._trainer
        progress, parts = load_state(trainer.state_path, trainer.fingerprint)
        self._network.load_state_dict(parts["network"])
        self._best = {name: tensor.to(trainer.device) for name, tensor in parts["best"].items()}
        if progress.epoch:
            self._prepare(progress.epoch - 1)
        restore_optimizer(self._optimizer, parts["optimizer"])
        self._objective.load_state(parts.get("objective", {}))
        return progress

    def _prepare(self, epoch: int) -> None:
        """Unfreeze the closed form when its epoch has come."""
        base, config = self._network.base, self._trainer.config
        if base is not None and not self._unfrozen and is_unfrozen(config.geometry, epoch):
            unfreeze(base, self._optimizer, config)
            self._unfrozen = True

    def _epoch(self, progress: Progress) -> None:
        trainer, config, epoch = self._trainer, self._trainer.config, progress.epoch
        self._prepare(epoch)
        temperature = temperature_of(config.temperature, epoch, config.epochs)
        recent = recent_of(config.loss.bank, epoch)
        batches = epoch_batches(config.sampler, trainer.train.image_of, config.seed, epoch)
        sums: dict[str, float] = {}
        start = time.perf_counter()
        for number, rows in enumerate(batches, start=1):
            terms = self._step(torch.from_numpy(rows), temperature, recent)
            terms["loss"] = sum(terms.values())
            if not np.isfinite(terms["loss"]):
                raise DataError(
                    f"{trainer.arm}, seed {config.seed}, epoch {epoch + 1}, batch {number}: the loss is not finite; "
                    f"lower learning_rate or raise the temperature. {trainer.checkpoint} keeps epoch "
                    f"{progress.best_epoch}, the best so far"
                )
            sums = {name: sums.get(name, 0.0) + value for name, value in terms.items()}
            if self._on_batch:
                self._on_batch(progress.steps + number, terms["loss"])
        progress.seconds += time.perf_counter() - start
        progress.steps, progress.epoch = progress.steps + len(batches), epoch + 1
        fired = self._objective.take_fired()
        for name, count in fired.items():
            progress.fired[name] = progress.fired.get(name, 0) + count
        found = self._validate()
        if found["mrr"] > progress.best_value:
            progress.best_value, progress.best_epoch = found["mrr"], epoch + 1
            self._best = copy.deepcopy(self._network.state_dict())
        record = {name: value / len(batches) for name, value in sums.items()} | {"fired": fired}
        record |= {f"val/{name}": value for name, value in found.items()}
        record |= {"temperature": temperature, "recent": recent, "closed_form_trained": self._unfrozen}
        head = {"step": progress.steps, "epoch": epoch + 1, "batches": len(batches)}
        append_jsonl(trainer.log_path, {**head, **record, "seconds": progress.seconds})

    def _step(self, rows: Tensor, temperature: float, recent: int) -> dict[str, float]:
        """One step; the weighted terms of its loss. Weights are left alone where the loss is not finite."""
        batch = Batch(rows.to(self._captions.device), self._image_of[rows])
        predicted = self._network(self._captions[batch.captions]) - self._offset
        terms = self._objective(predicted, batch, temperature, recent)
        loss = torch.stack(list(terms.values())).sum()
        values = torch.stack([term.detach() for term in terms.values()]).tolist()
        if np.isfinite(values).all():
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return dict(zip(terms, values, strict=True))

    def _validate(self) -> dict[str, float]:
        trainer = self._trainer
        try:
            return evaluate(self._as_translator(self._network), trainer.validation, trainer.device)
        except InputError as error:
            raise DataError(
                f"{trainer.arm}, seed {trainer.config.seed}: validation caption "
                f"{trainer.validation.caption_ids[error.index]!r} cannot be translated any more ({error.reason}); "
                "lower learning_rate"
            ) from None

    def _as_translator(self, network: TranslatorNetwork) -> NetworkTranslator:
        return NetworkTranslator(network, self._centre, self._notes)

    def _keep(self, progress: Progress, *, finished: bool) -> None:
        trainer, best = self._trainer, copy.deepcopy(self._network)
        best.load_state_dict(self._best)
        facts = {
            "val": progress.best_value,
            "start": progress.start_value,
            "best_epoch": progress.best_epoch,
            "epochs": progress.epoch,
            "steps": progress.steps,
            "seconds": progress.seconds,
            "parameters": count_parameters(best),
            "weight_bytes": sum(entry.numel() * entry.element_size() for entry in best.parameters()),
            "fired": progress.fired,
        }
        settings = trainer.settings(facts, finished=finished)
        save_translator(trainer.checkpoint, NETWORK, self._as_translator(best).tensors(), settings, self._notes)


def _cut_log(path: Path, epochs: int) -> None:
    """Keep the log of the epochs already done: those after the saved state are done again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line in lines[:epochs]))
