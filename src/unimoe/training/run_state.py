"""The folder of an unfinished training: its saved state, its logs, and the refusal of another training's files.

All trainers, those of the studies too, save and resume through ``RunState``. Each keeps its own loop and declares a
dataclass of its progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors
import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.core.io import append_jsonl, read_bytes, sole_use, write_text
from unimoe.models.checkpoint import first_difference
from unimoe.models.tensor_files import read_tensors, save_tensors

Progress = TypeVar("Progress")
Parts = dict[str, dict[str, Tensor]]
"""Tensors by the part they belong to, such as the optimizer, and by name."""

_OF_PROGRESS = "progress"


class RunState(Generic[Progress]):
    """The folder of one arm and seed.

    Args:
        folder: of the arm and seed.
        settings: everything that determines the training, as plain data.
        fingerprint: content hash of the settings.
        progress: a dataclass that says how far a training is, in numbers and tensors.

    Attributes:
        path: of the saved state, in safetensors' format.
        log_path: of the log with one line per step.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], fingerprint: str, progress: type[Progress]) -> None:
        self.folder, self.settings, self.fingerprint = folder, settings, fingerprint
        self.path, self._logs, self._progress = folder / "state.safetensors", folder / "logs", progress
        self.log_path = self._logs / "train.jsonl"

    def alone(self) -> AbstractContextManager[None]:
        """Return a context in which no other process trains here; entering it raises ``UsageError`` where one does."""
        return sole_use(self.folder)

    def save(self, progress: Progress, **parts: Mapping[str, Tensor]) -> None:
        """Write the state atomically: the progress, and the tensors that the trainer keeps between steps."""
        fields = vars(progress)
        parts[_OF_PROGRESS] = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        tensors = {f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        numbers = {name: value for name, value in fields.items() if not isinstance(value, Tensor)}
        about = {"fingerprint": self.fingerprint, "settings": self.settings, "progress": numbers}
        save_tensors(self.path, tensors, {name: json.dumps(value) for name, value in about.items()})

    def load(self, device: torch.device | str = "cpu") -> tuple[Progress, Parts] | None:
        """Read the saved state, with its tensors on a device; None where there is none.

        Raises:
            DataError: it is damaged or belongs to another training.
        """
        if not self.path.exists():
            return None
        parts: Parts = {}
        try:
            kept, texts = read_tensors(self.path, device)
            about = {name: json.loads(value) for name, value in texts.items()}
            for key, tensor in kept.items():
                part, _, name = key.partition(":")
                parts.setdefault(part, {})[name] = tensor
            self.refuse_other(self.path, about["fingerprint"], about["settings"])
            return self._progress(**about["progress"], **parts.pop(_OF_PROGRESS, {})), parts
        except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.path}: damaged training state ({error}); delete it to start over") from None

    def delete(self) -> None:
        """Remove the saved state: the training is finished."""
        self.path.unlink(missing_ok=True)

    def log(self, record: Mapping[str, Any], name: str = "train") -> None:
        """Append one line to a log."""
        append_jsonl(self._logs / f"{name}.jsonl", dict(record))

    def cut_logs(self, step: int) -> None:
        """Drop the lines about later steps than ``step``: a resumed training takes those steps again.

        Raises:
            DataError: a line is not a record of a step; names file and line.
        """
        for path in sorted(self._logs.glob("*.jsonl")):
            _cut_log(path, step)

    def refuse_other(self, path: Path, fingerprint: object, settings: Mapping[str, Any]) -> None:
        """Refuse what another training has left.

        Args:
            path: of what it left.
            fingerprint: of the training that left it.
            settings: those of its settings that are known, named as in this training's.

        Raises:
            DataError: the fingerprints differ; names the first setting that differs, where a known one does.
        """
        if fingerprint == self.fingerprint:
            return
        here = {name: self.settings.get(name) for name in settings}
        difference = first_difference(json.loads(json.dumps(settings)), json.loads(json.dumps(here)))
        reason = "its data or base model is another one"
        if difference:
            key, was, now = difference
            reason = f"{key} was {was!r} there and is {now!r} here"
        raise DataError(
            f"{path} is of another training: {reason}; choose another output_dir, or delete it to start over"
        )


def _cut_log(path: Path, step: int) -> None:
    kept = []
    lines = read_bytes(path).split(b"\n")[:-1]  # a killed run may leave a line without an end
    for number, line in enumerate(lines, start=1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line.decode() + "\n")
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{path}:{number}: not a record of a step; remove the line") from None
    write_text(path, "".join(kept))
