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
            f"training.tracking: wandb cannot start ({' '.join(str(error).split())}); run `wandb login`, set "
            "WANDB_MODE=offline, or take it off the list"
        ) from None
