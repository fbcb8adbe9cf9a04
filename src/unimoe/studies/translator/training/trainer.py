"""Trains a translator, keeps the best epoch by MRR on the validation images, and leaves a checkpoint.

    trainer = TranslatorTrainer(TranslatorConfig(model="bigjump"), train, validation)
    trainer.fit()
    ranks = image_ranks(trainer.translator().translate(captions), ...)

The state is saved every few epochs; a resumed training takes the same steps as an undisturbed one, to the last bit on
a CPU. Closed forms are computed and kept in the same way.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from unimoe.studies.translator.config import CLOSED_FORMS
from unimoe.studies.translator.models.files import MANIFEST_FILE, read_translator, save_closed_form
from unimoe.studies.translator.models.interface import Translator
from unimoe.studies.translator.training.checkpoints import evaluate, load_translator
from unimoe.studies.translator.training.closed_forms import fit_closed_form
from unimoe.studies.translator.training.epochs import OnBatch, train_epochs
from unimoe.studies.translator.training.sampler import epoch_batches
from unimoe.studies.translator.training.training import TranslatorTraining
from unimoe.training.state_files import refuse_other_fingerprint


class TranslatorTrainer(TranslatorTraining):
    """A training that can be run: to its end, from wherever its saved state is."""

    def fit(self, on_batch: OnBatch | None = None) -> dict[str, Any]:
        """Train, or find it trained.

        Returns:
            ``val``, MRR on the validation images of the best epoch, and ``start``, that before the first step;
            ``best_epoch``, ``epochs``, ``steps``, ``seconds``; ``parameters`` and ``weight_bytes``; ``fired``, how
            often each component of the loss had something to do.

        Raises:
            DataError: what is in the folder is of another training; or the loss is not finite, and then the best epoch
                so far is kept.
        """
        if not self.is_finished():
            if self.config.model in CLOSED_FORMS:
                self._compute()
            else:
                train_epochs(self, on_batch)
        facts: dict[str, Any] = read_translator(self.checkpoint).settings["facts"]
        return facts

    def is_finished(self) -> bool:
        """Whether the checkpoint of this very training is there, and whole.

        Raises:
            DataError: there is one of another training.
        """
        if not (self.checkpoint / MANIFEST_FILE).exists():
            return False
        settings = read_translator(self.checkpoint).settings
        refuse_other_fingerprint(self.checkpoint, self.fingerprint, settings.get("fingerprint"))
        return bool(settings["finished"])

    def translator(self) -> Translator:
        """The best epoch's translator."""
        return load_translator(self.checkpoint, self.device)

    @property
    def batches(self) -> int:
        """Of the whole training; 0 for closed forms."""
        config = self.config
        if config.model in CLOSED_FORMS:
            return 0
        return config.epochs * len(epoch_batches(config.sampler, self.train.image_of, config.seed, 0))

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
