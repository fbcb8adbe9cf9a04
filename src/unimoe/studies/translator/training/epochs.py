"""Trains the network of a translator epoch by epoch, and saves its state and its best epoch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.core.errors import DataError, UnimoeError
from unimoe.core.io import hash_json
from unimoe.models.device import choose_device
from unimoe.results import arm_dir
from unimoe.studies.translator.config import BASES, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
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
from unimoe.training.optimizer import optimizer_tensors, restore_optimizer
from unimoe.training.run_state import RunState

OnBatch = Callable[[int, float], None]
"""Called with the number of batches done in all, and the loss of the last one."""

WITHOUT_EFFECT = {"save_every", "device", "output_dir", "validation"}
"""Keys of the config that the trained weights do not depend on, or not beyond the pairs that a trainer is given."""


@dataclass
class Progress:
    """How far the training of a translator is.

    Attributes:
        start_value: MRR on the validation images before the first step.
        best_value: the best so far.
        best_epoch: the epoch after which it was seen; 0 is before the first step.
        epoch: epochs done.
        steps: steps taken.
        seconds: time of the steps, without evaluations on the validation images.
        fired: how often each component of the loss was active.
    """

    start_value: float
    best_value: float
    best_epoch: int = 0
    epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    fired: dict[str, int] = field(default_factory=dict)


class TranslatorTraining:
    """Settings, data and folder of one training.

    Args:
        config: of the training.
        train: pairs to learn from.
        validation: pairs of other images, which choose the epoch.
        arm: its name in results; by default the model's.

    Attributes:
        checkpoint: folder of the best epoch.
        last: folder of the last epoch.
        state: of the training in progress.
    """

    def __init__(
        self, config: TranslatorConfig, train: CaptionPairs, validation: CaptionPairs, arm: str | None = None
    ) -> None:
        self.config, self.train, self.validation = config, train, validation
        self.arm, self.device = arm or config.model, choose_device(config.device)
        folder = arm_dir(Path(config.output_dir), self.arm, config.seed)
        self.checkpoint, self.last = folder / "checkpoint", folder / "last"
        settings = {
            "config": config.model_dump(exclude=WITHOUT_EFFECT),
            "data": [train.content_hash, validation.content_hash],
        }
        self.state = RunState(folder, settings, hash_json(list(settings.values())), Progress)

    def settings(self, facts: dict[str, Any], *, finished: bool) -> dict[str, Any]:
        """Return the facts written beside the weights."""
        return {
            "fingerprint": self.state.fingerprint,
            "finished": finished,
            "arm": self.arm,
            "config": self.config.model_dump(),
            "facts": facts,
        }


def train_epochs(trainer: TranslatorTraining, on_batch: OnBatch | None) -> None:
    """Train a network to its last epoch, from the saved state where there is one; errors are those of ``fit``."""
    _Run(trainer, on_batch).epochs()


class _Run:
    """Holds a network in training, and its data on the device."""

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
        progress = self._resume() or self._begin()
        trainer.state.cut_logs(progress.steps)
        while progress.epoch < config.epochs:
            try:
                self._epoch(progress)
            except UnimoeError:
                self._keep(progress, finished=False)
                raise
            if progress.epoch < config.epochs and progress.epoch % config.save_every == 0:
                trainer.state.save(
                    progress,
                    network=self._network.state_dict(),
                    best=self._best,
                    optimizer=optimizer_tensors(self._optimizer),
                    objective=self._objective.state(),
                )
        # First the last epoch: once the best one says that the training is finished, nothing else is written.
        save_translator(trainer.last, NETWORK, self._as_translator(self._network).tensors(), {"epoch": config.epochs})
        self._keep(progress, finished=True)
        trainer.state.delete()

    def _begin(self) -> Progress:
        value = self._validate()["mrr"]
        return Progress(start_value=value, best_value=value)

    def _resume(self) -> Progress | None:
        saved = self._trainer.state.load()
        if saved is None:
            return None
        progress, parts = saved
        self._network.load_state_dict(parts["network"])
        self._best = {name: tensor.to(self._trainer.device) for name, tensor in parts["best"].items()}
        if progress.epoch:
            self._prepare(progress.epoch - 1)
        restore_optimizer(self._optimizer, parts["optimizer"])
        self._objective.load_state(parts.get("objective", {}))
        return progress

    def _prepare(self, epoch: int) -> None:
        """Unfreeze the closed form from its epoch on."""
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
        counts = self._objective.take_counts()
        for name, count in counts.items():
            progress.fired[name] = progress.fired.get(name, 0) + count
        found = self._validate()
        if found["mrr"] > progress.best_value:
            progress.best_value, progress.best_epoch = found["mrr"], epoch + 1
            self._best = copy.deepcopy(self._network.state_dict())
        record = {name: value / len(batches) for name, value in sums.items()} | {"fired": counts}
        record |= {f"val/{name}": value for name, value in found.items()}
        record |= {"temperature": temperature, "recent": recent, "closed_form_trained": self._unfrozen}
        head = {"step": progress.steps, "epoch": epoch + 1, "batches": len(batches)}
        trainer.state.log({**head, **record, "seconds": progress.seconds})

    def _step(self, rows: Tensor, temperature: float, recent: int) -> dict[str, float]:
        """Take one step and return the weighted terms of its loss; a loss that is not finite changes no weight."""
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
        except DataError as error:
            raise DataError(f"{trainer.arm}, seed {trainer.config.seed}: {error}; or lower learning_rate") from None

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
