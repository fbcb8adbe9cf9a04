"""Sends a training's log to TensorBoard or Weights & Biases, in addition to the JSONL file."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from unimoe.config.training import Tracker
from unimoe.core.errors import UsageError
from unimoe.core.io import ensure_dir

Log = Callable[[int, Mapping[str, float]], None]
"""Receives a step's number and its values."""


def refuse_missing(names: Sequence[Tracker]) -> None:
    """Raise ``UsageError`` where the library of a tracker is not installed, before a training starts."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"training.tracking: {name} is not installed; run `uv sync --extra tracking`, or take it off the list"
            )


@contextmanager
def trackers(
    names: Sequence[Tracker], folder: Path, *, run: str, identity: str, step: int, config: Mapping[str, Any]
) -> Iterator[Log]:
    """Open the trackers of a training, and close them when the block ends.

    Args:
        names: of the trackers.
        folder: for their files.
        run: name of the training.
        identity: of the training; a resumed training keeps it.
        step: steps already taken; earlier records of later steps are removed, as those steps are taken again.
        config: recorded beside the values.
    """
    with ExitStack() as stack:
        logs = []
        if "tensorboard" in names:
            logs.append(stack.enter_context(_tensorboard(folder / "tensorboard", step)))
        if "wandb" in names:
            logs.append(stack.enter_context(_wandb(ensure_dir(folder), run, identity, config)))

        def log(step: int, values: Mapping[str, float]) -> None:
            for each in logs:
                each(step, values)

        yield log


@contextmanager
def _tensorboard(folder: Path, step: int) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _wandb(folder: Path, run: str, identity: str, config: Mapping[str, Any]) -> Iterator[Log]:
    """Open a run in the project that WANDB_PROJECT names, or ``unimoe``; WANDB_MODE=offline needs no network."""
    import wandb

    settings = wandb.Settings(silent=True, console="off")
    project = os.environ.get("WANDB_PROJECT", "unimoe")
    try:
        opened = wandb.init(
            project=project, name=run, id=identity, resume="allow", dir=str(folder), config=dict(config),
            settings=settings,
        )  # fmt: skip
    except wandb.errors.Error as error:
        raise UsageError(
            f"training.tracking: wandb cannot start ({' '.join(str(error).split())}); run `wandb login`, set "
            "WANDB_MODE=offline, or take it off the list"
        ) from None
    try:
        yield lambda step, values: opened.log(dict(values), step=step)
    finally:
        opened.finish()
