"""Trains a translator and writes a checkpoint of its best epoch by MRR on the validation images.

    trainer = TranslatorTrainer(TranslatorConfig(model="bigjump"), train, validation)
    trainer.fit()
    ranks = image_ranks(trainer.translator().translate(captions), ...)

The state is saved every few epochs. On a CPU, a resumed training takes the same steps as an undisturbed one.
Closed forms are computed and written in the same way.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

import numpy as np

from unimoe.studies.translator.config import CLOSED_FORMS
from unimoe.studies.translator.models.files import MANIFEST_FILE, TENSORS_FILE, read_translator, save_closed_form
from unimoe.studies.translator.models.interface import Translator
from unimoe.studies.translator.training.checkpoints import evaluate, load_translator
from unimoe.studies.translator.training.closed_forms import fit_closed_form
from unimoe.studies.translator.training.epochs import WITHOUT_EFFECT, OnBatch, TranslatorTraining, train_epochs
from unimoe.studies.translator.training.sampler import epoch_batches


class TranslatorTrainer(TranslatorTraining):
    """Trains to the end, from the saved state where there is one."""

    def fit(self, on_batch: OnBatch | None = None) -> dict[str, Any]:
        """Train unless that is done.

        Returns:
            ``val``, MRR on the validation images of the best epoch, and ``start``, that before the first step;
            ``best_epoch``, ``epochs``, ``steps``, ``seconds``; ``parameters`` and ``weight_bytes``; ``fired``, how
            often each component of the loss was active.

        Raises:
            DataError: the folder holds another training; or the loss is not finite, and then the best epoch so far is
                kept.
        """
        with self.state.alone():
            if not self.is_finished():
                self._compute() if self.config.model in CLOSED_FORMS else train_epochs(self, on_batch)
        facts: dict[str, Any] = read_translator(self.checkpoint).settings["facts"]
        return facts

    def is_finished(self) -> bool:
        """Return whether the checkpoint of this training exists and is complete.

        Raises:
            DataError: there is a checkpoint of another training.
        """
        if not (self.checkpoint / MANIFEST_FILE).exists():
            return False
        settings = read_translator(self.checkpoint).settings
        config = {key: value for key, value in settings.get("config", {}).items() if key not in WITHOUT_EFFECT}
        self.state.refuse_other(self.checkpoint, settings.get("fingerprint"), {"config": config})
        return bool(settings["finished"])

    def make_room(self) -> None:
        """Remove what an unfinished training left, so that a worker's files take its place.

        Raises:
            DataError: it is of another training.
        """
        with self.state.alone():
            whole = all((self.checkpoint / name).exists() for name in (TENSORS_FILE, MANIFEST_FILE))
            self.state.load()
            if not (whole and self.is_finished()):
                shutil.rmtree(self.checkpoint, ignore_errors=True)
                shutil.rmtree(self.last, ignore_errors=True)
            self.state.delete()

    def translator(self) -> Translator:
        """Load the translator of the best epoch."""
        return load_translator(self.checkpoint, self.device)

    @property
    def batches(self) -> int:
        """Batches of the whole training; 0 for closed forms."""
        config = self.config
        if config.model in CLOSED_FORMS:
            return 0
        return config.epochs * len(epoch_batches(config.sampler, self.train.image_of, config.seed, 0))

    @property
    def captions_seen(self) -> int:
        """Captions of all batches of the whole training, each as often as it is seen; 0 for closed forms."""
        config = self.config
        epochs = 0 if config.model in CLOSED_FORMS else config.epochs
        batches = (epoch_batches(config.sampler, self.train.image_of, config.seed, epoch) for epoch in range(epochs))
        return sum(len(rows) for batch in batches for rows in batch)

    def _compute(self) -> None:
        start = time.perf_counter()
        fitted = fit_closed_form(self.config.model, self.train, self.config)
        seconds = time.perf_counter() - start
        value = evaluate(fitted, self.validation, self.device)["mrr"]
        arrays = [entry for entry in vars(fitted).values() if isinstance(entry, np.ndarray)]
        facts = {
            "val": value,
            "start": value,
            "best_epoch": 0,
            "epochs": 0,
            "steps": 0,
            "seconds": seconds,
            "parameters": sum(entry.size for entry in arrays),
            "weight_bytes": sum(entry.nbytes for entry in arrays),
            "fired": {},
        }
        save_closed_form(self.checkpoint, fitted, self.settings(facts, finished=True))
