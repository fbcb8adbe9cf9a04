"""Trains a translator and writes a checkpoint of its best epoch by MRR on the validation images.

    trainer = TranslatorTrainer(TranslatorConfig(model="bigjump"), train, validation)
    trainer.fit()
    ranks = image_ranks(trainer.translator().translate(captions), ...)

On a CPU, a resumed training takes the same steps as an undisturbed one. A closed form is a training without steps.
"""

from __future__ import annotations

import copy
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.models.device import choose_device
from unimoe.results import arm_dir
from unimoe.studies.translator.config import BASES, CLOSED_FORMS, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
from unimoe.studies.translator.evaluation import evaluate
from unimoe.studies.translator.models.files import (
    MANIFEST_FILE,
    TENSORS_FILE,
    AnyTranslator,
    load_translator,
    read_manifest,
    save_translator,
    translator_tensors,
)
from unimoe.studies.translator.models.interface import Translator
from unimoe.studies.translator.models.networks import NetworkTranslator, Scales, make_network
from unimoe.studies.translator.training.closed_forms import fit_closed_form, linear_map
from unimoe.studies.translator.training.objective import Batch, Objective
from unimoe.studies.translator.training.schedule import (
    epoch_batches,
    make_optimizer,
    recent_of,
    temperature_of,
    unfreeze,
)
from unimoe.training.loop import Facts, OnStep, Training
from unimoe.training.optimizer import optimizer_tensors, restore_optimizer
from unimoe.training.run_state import Parts, RunState

WITHOUT_EFFECT = {"save_every", "device", "output_dir", "validation"}
"""Keys of the config that the trained weights do not depend on, or not beyond the pairs that a trainer is given."""


class TranslatorTrainer(Training):
    """Trains one translator.

    Args:
        config: of the training.
        train: pairs to learn from.
        validation: pairs of other images, which choose the epoch.
        arm: its name in results; by default the model's.

    Attributes:
        checkpoint: folder of the best epoch.
        last: folder of the last epoch.
        captions_seen: captions of all batches of the whole training, each as often as it is seen.
    """

    step_log: ClassVar[str | None] = None  # the log has a line for each epoch, with its scores

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
        # Epochs of batches by image may differ in length, as a batch of one caption is left out.
        epochs = range(0 if config.model in CLOSED_FORMS else config.epochs)
        batches = [epoch_batches(config.sampler, train.image_of, config.seed, epoch) for epoch in epochs]
        self._ends = [*accumulate(map(len, batches))]
        self.captions_seen = sum(len(rows) for epoch in batches for rows in epoch)
        super().__init__(
            RunState(folder, settings, hash_json(list(settings.values()))),
            self._ends[-1] if self._ends else 0,
            dev_every=None,
            save_every=1,
            scores_start=True,
        )

    def fit(self, on_batch: OnStep | None = None) -> dict[str, Any]:
        """Train unless that is done.

        Returns:
            ``val``, MRR on the validation images of the best epoch, and ``start``, that before the first step;
            ``best_epoch``, ``epochs``, ``steps``, ``seconds``; ``parameters`` and ``weight_bytes``; ``fired``, how
            often each component of the loss was active.

        Raises:
            DataError: the folder holds another training; or the loss is not finite, and then the best epoch so far is
                kept.
        """
        self.run(on_batch)
        facts: dict[str, Any] = read_manifest(self.checkpoint).settings["facts"]
        return facts

    def translator(self) -> Translator:
        """Load the translator of the best epoch."""
        return load_translator(self.checkpoint, self.device)

    @property
    def outputs(self) -> Sequence[Path]:
        """The files of both checkpoints; closed forms have one."""
        return self.checkpoint / TENSORS_FILE, self.checkpoint / MANIFEST_FILE, self.last / TENSORS_FILE

    def is_finished(self) -> bool:
        """Return whether the checkpoint of this training exists and is complete.

        Raises:
            DataError: there is a checkpoint of another training.
        """
        if not (self.checkpoint / MANIFEST_FILE).exists():
            return False
        settings = read_manifest(self.checkpoint).settings
        config = {key: value for key, value in settings.get("config", {}).items() if key not in WITHOUT_EFFECT}
        self.state.refuse_other(self.checkpoint, settings.get("fingerprint"), {"config": config})
        return bool(settings["finished"])

    def is_scored_after(self, step: int) -> bool:
        """Return whether an epoch ends there."""
        return step in self._ends

    def is_saved_after(self, step: int) -> bool:
        """Return whether ``save_every`` epochs end there: only then the sums of an epoch need not be saved."""
        return step in self._ends and self._epochs(step) % self.config.save_every == 0

    def prepare(self) -> None:
        """Fit a closed form, or make the network, its optimizer and its objective."""
        config, train, device = self.config, self.train, self.device
        if not self._ends:
            start = time.perf_counter()
            self._closed_form = fit_closed_form(config.model, train, config)
            self.progress.seconds = time.perf_counter() - start
            return
        base = BASES.get(config.model)
        fitted = linear_map(base, train, config) if base else None
        scales = Scales.of(train.captions, train.images)
        network = make_network(config.model, scales, config.hidden, config.seed, fitted, centred=config.centre)
        self._network = network.to(device)
        self._offset = torch.tensor(scales.image_mean * config.centre, dtype=torch.float32, device=device)
        self._captions = torch.from_numpy(train.captions).to(device)
        self._image_of = torch.from_numpy(train.image_of).to(device)
        images = torch.from_numpy(train.images).to(device)
        self._objective = Objective(config.loss, normalize(images - self._offset, dim=1), len(train))
        self._optimizer = make_optimizer(self._network, config)
        self._unfrozen = False

    def begin_step(self, number: int) -> None:
        """Set what changes from epoch to epoch, at its first step."""
        config, epoch = self.config, self._epochs(number)
        self._place = number - ([0, *self._ends])[epoch]
        if self._place:
            return
        self._unfreeze(epoch)
        self._temperature = temperature_of(config.temperature, epoch, config.epochs)
        self._recent = recent_of(config.loss.bank, epoch)
        self._batches = epoch_batches(config.sampler, self.train.image_of, config.seed, epoch)
        self._sums: dict[str, float] = {}

    def step(self, number: int) -> Facts:
        """Take the step of a batch; a loss that is not finite changes no weight."""
        rows = torch.from_numpy(self._batches[self._place]).to(self.device)
        batch = Batch(rows, self._image_of[rows])
        predicted = self._network(self._captions[rows]) - self._offset
        terms = self._objective(predicted, batch, self._temperature, self._recent)
        loss = torch.stack(list(terms.values())).sum()
        values = torch.stack([term.detach() for term in terms.values()]).tolist()
        facts = dict(zip(terms, values, strict=True)) | {"loss": sum(values)}
        if not np.isfinite(facts["loss"]):
            self._write_best(finished=False)
            raise DataError(
                f"{self.arm}, seed {self.config.seed}, epoch {self._epochs(number) + 1}, batch {self._place + 1}: the "
                f"loss is not finite; lower learning_rate or raise the temperature. {self.checkpoint} keeps epoch "
                f"{self._epochs(self.progress.best_step)}, the best so far"
            )
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in facts.items()}
        return {"loss": facts["loss"]}

    def score_on_dev(self) -> tuple[float, Facts]:
        """Return MRR on the validation images, and the facts about the epoch that has ended."""
        progress = self.progress
        try:
            found = evaluate(self._current(), self.validation, self.device)
        except DataError as error:
            if progress.step:
                self._write_best(finished=False)
            remedy = "; or lower learning_rate" if self._ends else ""
            raise DataError(f"{self.arm}, seed {self.config.seed}: {error}{remedy}") from None
        if not progress.step:
            return found["mrr"], {}
        counts, fired = self._objective.take_counts(), progress.extra.get("fired", {})
        progress.extra["fired"] = {**fired, **{name: fired.get(name, 0) + count for name, count in counts.items()}}
        return found["mrr"], {
            "epoch": self._epochs(progress.step),
            "batches": len(self._batches),
            **{name: value / len(self._batches) for name, value in self._sums.items()},
            "fired": counts,
            **{f"val/{name}": value for name, value in found.items()},
            "temperature": self._temperature,
            "recent": self._recent,
            "closed_form_trained": self._unfrozen,
            "seconds": progress.seconds,
        }

    def keep_best(self) -> None:
        """Copy the network."""
        if self._ends:
            self._best: dict[str, Tensor] = copy.deepcopy(self._network.state_dict())

    def parts(self) -> Parts:
        """Return the network, its best epoch, the optimizer's moments and the queues."""
        return {
            "network": self._network.state_dict(),
            "best": self._best,
            "optimizer": optimizer_tensors(self._optimizer),
            "objective": self._objective.state(),
        }

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned; the optimizer gets its parameters before their moments."""
        self._network.load_state_dict(parts["network"])
        self._best = {name: tensor.to(self.device) for name, tensor in parts["best"].items()}
        self._unfreeze(self._epochs(self.progress.step) - 1)
        restore_optimizer(self._optimizer, parts["optimizer"])
        self._objective.load_state(dict(parts.get("objective", {})))

    def finish(self) -> None:
        """Write the last epoch, and then the best, whose manifest says that the training is finished."""
        if self._ends:
            save_translator(self.last, self._current(), {"epoch": self.config.epochs})
        self._write_best(finished=True)

    def _current(self) -> AnyTranslator:
        return self._network if self._ends else self._closed_form

    def _epochs(self, step: int) -> int:
        """Return how many epochs have ended after so many steps."""
        return bisect_right(self._ends, step)

    def _unfreeze(self, epoch: int) -> None:
        """Let the optimizer train the closed form too, from its epoch on."""
        base, first = self._network.base, self.config.geometry.unfreeze_epoch
        if base is not None and not self._unfrozen and first is not None and epoch + 1 >= first:
            unfreeze(base, self._optimizer, self.config)
            self._unfrozen = True

    def _write_best(self, *, finished: bool) -> None:
        """Write the best epoch, with the settings and facts that are kept beside the weights."""
        best, progress = copy.deepcopy(self._current()), self.progress
        if isinstance(best, NetworkTranslator):
            best.load_state_dict(self._best)
            weights: list[Any] = [*best.parameters()]
        else:
            weights = [*translator_tensors(best).values()]
        facts = {
            "val": progress.best_score,
            "start": progress.start,
            "best_epoch": self._epochs(progress.best_step),
            "epochs": self._epochs(progress.step),
            "steps": progress.step,
            "seconds": progress.seconds,
            "parameters": sum(math.prod(weight.shape) for weight in weights),
            "weight_bytes": sum(weight.nbytes for weight in weights),
            "fired": progress.extra.get("fired", {}),
        }
        settings = {
            "fingerprint": self.state.fingerprint,
            "finished": finished,
            "arm": self.arm,
            "config": self.config.model_dump(),
            "facts": facts,
        }
        save_translator(self.checkpoint, best, settings)
