"""What one training of a translator is: its settings and data, its folders, and the fingerprint of all that decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unimoe.io import hash_json
from unimoe.models.device import choose_device
from unimoe.results import arm_dir
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs

_NOT_DECISIVE = {"save_every", "device", "output_dir", "validation"}


class TranslatorTraining:
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

    def settings(self, facts: dict[str, Any], *, finished: bool) -> dict[str, Any]:
        """What is written beside the weights."""
        return {
            "fingerprint": self.fingerprint,
            "finished": finished,
            "arm": self.arm,
            "config": self.config.model_dump(),
            "facts": facts,
        }
