"""The folder of an unfinished training: its saved state, its logs, and the refusal of another training's files.

Its log goes to TensorBoard or Weights & Biases too, in addition to the JSONL file.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config.training import Tracker
from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import append_jsonl, ensure_dir, read_bytes, sole_use, write_text
from unimoe.models.checkpoint import first_difference
from unimoe.models.tensor_files import read_tensors, save_tensors

Parts = dict[str, Mapping[str, Tensor]]
"""Tensors by the part they belong to, such as the optimizer, and by name."""

LogStep = Callable[[int, Mapping[str, float]], None]
"""Receives a step's number and its values."""


@dataclass
class Progress:
    """How far a training is."""

    step: int = 0
    seconds: float = 0.0  # of the steps, without evaluations on dev
    start: float | None = None  # the score on dev before the first step, where that is evaluated
    best_score: float | None = None  # on dev so far
    best_step: int = 0  # steps taken when it was seen
    waited: int = 0  # evaluations since then
    extra: dict[str, Any] = field(default_factory=dict)  # what else a trainer must know after a kill, as JSON values

    def note(self, score: float) -> bool:
        """Record a score on dev; return whether it is the best so far, which of equal scores is the earliest."""
        if self.best_score is not None and score <= self.best_score:
            self.waited += 1
            return False
        self.best_score, self.best_step, self.waited = score, self.step, 0
        return True

    def count(self, name: str, number: int) -> None:
        """Add to a count among the extras, which begins at 0."""
        self.extra[name] = self.extra.get(name, 0) + number


class RunState:
    """The folder of one arm and seed. All processes read it, the leader alone writes.

    ``settings`` are everything that determines the training, as plain data, ``fingerprint`` is their content hash.
    ``tracking`` are the trackers that receive the log too. The saved state is at ``path``; ``logs`` is the folder of
    the logs, and ``log_path`` that of the steps.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        fingerprint: str,
        processes: Processes = ALONE,
        tracking: Sequence[Tracker] = (),
    ) -> None:
        self.tracking = tracking if processes.leads else ()
        self.folder, self.settings, self.fingerprint, self.processes = folder, settings, fingerprint, processes
        self.path, self.logs = folder / "state.safetensors", folder / "logs"
        self.log_path = self.logs / "train.jsonl"

    def alone(self) -> AbstractContextManager[None]:
        """Return a context in which no other process trains here, except those of one torchrun; else a UsageError."""
        return sole_use(self.folder) if self.processes.size == 1 else nullcontext()

    def save(self, progress: Progress, parts: Parts) -> None:
        """Write the state atomically."""
        if self.processes.leads:
            tensors = {f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
            about = {"fingerprint": self.fingerprint, "settings": self.settings, "progress": vars(progress)}
            save_tensors(self.path, tensors, {name: json.dumps(value) for name, value in about.items()})

    def load(self) -> tuple[Progress, Parts] | None:
        """Read the saved state, with its tensors on the CPU; None where there is none."""
        if not self.path.exists():
            return None
        parts: dict[str, dict[str, Tensor]] = {}
        try:
            tensors, texts = read_tensors(self.path)
            about = {name: json.loads(value) for name, value in texts.items()}
            self.refuse_other(self.path, about["fingerprint"], about["settings"])
            for key, tensor in tensors.items():
                part, _, name = key.partition(":")
                parts.setdefault(part, {})[name] = tensor
            return Progress(**about["progress"]), {**parts}
        except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.path}: damaged training state ({error}); delete it to start over") from None

    def delete(self) -> None:
        """Remove the saved state: the training is finished."""
        if self.processes.leads:
            self.path.unlink(missing_ok=True)

    def tracked(self, step: int) -> AbstractContextManager[LogStep]:
        """Return the trackers, which the leader alone has, of a training that has taken so many steps."""
        run = "-".join(self.folder.parts[-3:])
        names, identity, config = self.tracking, self.fingerprint, self.settings
        return trackers(names, self.logs, run=run, identity=identity, step=step, config=config)

    def refuse_missing_trackers(self) -> None:
        """Raise ``UsageError`` where the library of a tracker is not installed, before a training starts."""
        for name in self.tracking:
            if importlib.util.find_spec(name) is None:
                raise UsageError(
                    f"tracking: {name} is not installed; run `{install_extra('tracking')}`, or take it off the list"
                )

    def log(self, record: Mapping[str, Any], name: str = "train") -> None:
        """Append one line to a log."""
        if self.processes.leads:
            append_jsonl(self.logs / f"{name}.jsonl", dict(record))

    def cut_logs(self, step: int) -> None:
        """Drop the lines about later steps than ``step``: a resumed training takes those steps again."""
        for path in sorted(self.logs.glob("*.jsonl")) if self.processes.leads else ():
            kept = []
            lines = read_bytes(path).split(b"\n")[:-1]  # a killed run may leave a line without an end
            for number, line in enumerate(lines, start=1):
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line.decode() + "\n")
                except (ValueError, TypeError, KeyError):
                    raise DataError(f"{path}:{number}: not a record of a step; remove the line") from None
            write_text(path, "".join(kept))

    def refuse_other(self, path: Path, fingerprint: object, settings: Mapping[str, Any]) -> None:
        """Refuse what another training has left at a path; name the first of its known settings that differs."""
        if fingerprint == self.fingerprint:
            return
        here = {name: self.settings.get(name) for name in settings}
        difference = first_difference(*(json.loads(json.dumps(one)) for one in (settings, here)))
        reason = "its data or base model is another one"
        if difference:
            key, was, now = difference
            reason = f"{key} was {was!r} there and is {now!r} here"
        raise DataError(
            f"{path} is of another training: {reason}; choose another output_dir, or delete it to start over"
        )


@contextmanager
def trackers(
    names: Sequence[Tracker], folder: Path, *, run: str, identity: str, step: int, config: Mapping[str, Any]
) -> Iterator[LogStep]:
    """Open the trackers of a training, and close them when the block ends.

    A resumed training keeps its ``identity``. Records of steps after ``step`` are removed, which are taken again.
    """
    with ExitStack() as stack:
        writer = opened = None
        if "tensorboard" in names:
            from torch.utils.tensorboard import SummaryWriter

            purge_step = step + 1 if step else None
            writer = stack.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step))
        if "wandb" in names:
            opened = stack.enter_context(_wandb_run(ensure_dir(folder), run, identity, config))

        def log(step: int, values: Mapping[str, float]) -> None:
            if writer is not None:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            if opened is not None:
                opened.log(dict(values), step=step)

        yield log


def _wandb_run(folder: Path, run: str, identity: str, config: Mapping[str, Any]) -> Any:
    """Open a run in the project that WANDB_PROJECT names, or ``unimoe``; WANDB_MODE=offline needs no network."""
    import wandb

    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "unimoe"), name=run, id=identity, resume="allow", dir=str(folder),
            config=dict(config), settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
    except wandb.errors.Error as error:
        raise UsageError(
            f"tracking: wandb cannot start ({' '.join(str(error).split())}); run `wandb login`, set "
            "WANDB_MODE=offline, or take it off the list"
        ) from None
