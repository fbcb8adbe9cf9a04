"""Trains a translator, keeps the best epoch by MRR on the validation images, and leaves a checkpoint.

    trainer = TranslatorTrainer(TranslatorConfig(model="bigjump"), train, validation)
    trainer.fit()
    ranks = image_ranks(trainer.translator().translate(captions), ...)

The state is saved every few epochs; a resumed training takes the same steps as an undisturbed one, to the last bit on
a CPU. Closed forms are computed and kept in the same way.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from unimoe.config.translator import CLOSED_FORMS, TranslatorConfig
from unimoe.data.caption_pairs import CaptionPairs
from unimoe.io import hash_json
from unimoe.models.device import choose_device
from unimoe.models.translator.files import MANIFEST_FILE, read_translator, save_closed_form
from unimoe.models.translator.interface import Translator
from unimoe.results import arm_dir
from unimoe.training.heads.state import refuse_other
from unimoe.training.translator.checkpoints import evaluate, load_translator
from unimoe.training.translator.closed_forms import fit_closed_form
from unimoe.training.translator.epochs import OnBatch, train_epochs
from unimoe.training.translator.sampler import epoch_batches

_NOT_DECISIVE = {"save_every", "device", "output_dir", "validation"}


class TranslatorTrainer:
    """One training of a translator.

    Args:
        config: what to train, and how.
        train: pairs to learn from.
        validation: pairs of other images, which choose the epoch.
        arm: its name in results; by default the model's.

    Attributes:
        checkpoint: folder of the best epoch; ``last`` beside it holds the last one.
        log_path: a line for every epoch.
        fingerprint: content hash of all that determines the training.
    """

    def __init__(
        self, config: TranslatorConfig, train: CaptionPairs, validation: CaptionPairs, arm: str | None = None
    ) -> None:
        self.config, self.train, self.validation = config, train, validation
        self.arm, self.device = arm or config.model, choose_device(config.device)
        folder = arm_dir(Path(config.output_dir), self.arm, config.seed)
        self.checkpoint, self.last = folder / "checkpoint", folder / "last"
        self.log_path, self.state_path = folder / "logs" / "train.jsonl", folder / "state.safetensors"
        content = [train.content_hash, validation.content_hash]
        self.fingerprint = hash_json([config.model_dump(exclude=_NOT_DECISIVE), content])

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
        refuse_other(self.checkpoint, self.fingerprint, settings.get("fingerprint"))
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

    def settings(self, facts: dict[str, Any], *, finished: bool) -> dict[str, Any]:
        """What is written beside the weights."""
        return {
            "fingerprint": self.fingerprint,
            "finished": finished,
            "arm": self.arm,
            "config": self.config.model_dump(),
            "facts": facts,
        }

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
