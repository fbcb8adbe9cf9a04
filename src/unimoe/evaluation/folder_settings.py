"""What the folder of an experiment has once and for all: settings that decide its scores, and the dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from unimoe.config import Experiment
from unimoe.config.base import Dtype
from unimoe.core.errors import DataError
from unimoe.core.io import Strict, read_json, write_json
from unimoe.evaluation.engines import Engine
from unimoe.models.checkpoint import WITHOUT_EFFECT, first_difference

_MAY_CHANGE = {"evaluation": ("systems", "token_budget", "batch_size", "compile", "varlen"), "training": WITHOUT_EFFECT}
"""Settings that may change while a folder is worked in: they add scores, or round them."""

_NOT_KEPT = {"output_dir", "seeds", "arms", "gates", "served", "caveats"}
"""Seeds and arms may be added later; each training has a fingerprint. A copy in the folder guards the gates."""


class _Kept(Strict):
    config: dict[str, Any]
    dtype: Dtype


def refuse_other_settings(experiment: Experiment) -> None:
    """Refuse an output folder that holds an experiment with other settings."""
    path = _path(experiment)
    if path.exists() and (found := first_difference(read_json(path, _Kept).config, _fixed(experiment))):
        key, was, now = found
        raise DataError(
            f"{path.parent} holds an experiment with another {key} ({was!r} there, {now!r} here); "
            "choose another --output-dir, or delete the folder"
        )


def folder_dtype(experiment: Experiment, device: torch.device, engine: Engine) -> torch.dtype:
    """Return the dtype with which an output folder was begun; in a new one that of the config, ``auto`` probed."""
    path = _path(experiment)
    if path.exists():
        return engine.dtype(device, read_json(path, _Kept).dtype)
    return engine.dtype(device, experiment.model.dtype, trains=True)


def keep_settings(experiment: Experiment, dtype: torch.dtype) -> None:
    """Write what the output folder has from now on, unless it is there."""
    if not _path(experiment).exists():
        name = str(dtype).removeprefix("torch.")
        write_json(_path(experiment), {"config": _fixed(experiment), "dtype": name})


def _path(experiment: Experiment) -> Path:
    return Path(experiment.output_dir) / "experiment.json"


def _fixed(experiment: Experiment) -> dict[str, Any]:
    settings = experiment.model_dump(include={*Experiment.model_fields} - _NOT_KEPT)
    if not settings["pool_runs"]:  # folders of before do not have it
        del settings["pool_runs"]
    for section, keys in _MAY_CHANGE.items():
        for key in keys:
            settings[section].pop(key)
    return settings
