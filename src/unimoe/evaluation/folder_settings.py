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
from unimoe.results import read_result, result_files

_MAY_CHANGE = {"evaluation": ("systems", "token_budget", "batch_size", "compile", "varlen"), "training": WITHOUT_EFFECT}
"""Settings that may change while a folder is worked in: they add scores, or round them."""

_NOT_KEPT = {"output_dir", "seeds", "arms", "gates", "served", "caveats"}
"""Seeds and arms may be added later; each training has a fingerprint. A copy in the folder guards the gates."""


_SETTINGS = "experiment.json"
STUDY = "study.json"
"""Whose the folder of a study is, by name and family."""


class _Kept(Strict):
    config: dict[str, Any]
    dtype: Dtype


def names_in(folder: Path) -> list[str]:
    """Return the names of the experiments that a folder has settings or results of."""
    path = folder / _SETTINGS
    own = [str(read_json(path, _Kept).config.get("name"))] if path.exists() else []
    return list(dict.fromkeys([*own, *(read_result(file).identity.experiment for file in result_files(folder))]))


def refuse_other_settings(experiment: Experiment) -> None:
    """Refuse an output folder that holds a study, another experiment, or this one with other settings."""
    path = _path(experiment)
    if (study := path.parent / STUDY).exists():
        name = read_json(study, dict[str, str]).get("name")
        raise DataError(f"{path.parent} holds the study {name!r}, and no experiment; choose another --output-dir")
    if path.exists() and (found := first_difference(read_json(path, _Kept).config, _fixed(experiment))):
        key, was, now = found
        raise DataError(
            f"{path.parent} holds an experiment with another {key} ({was!r} there, {now!r} here); "
            "choose another --output-dir, or delete the folder"
        )
    if other := next((name for name in names_in(path.parent) if name != experiment.name), None):
        raise DataError(
            f"{path.parent} holds results of another experiment ({other!r} there, {experiment.name!r} here); "
            "choose another --output-dir"
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
    return Path(experiment.output_dir) / _SETTINGS


def _fixed(experiment: Experiment) -> dict[str, Any]:
    settings = experiment.model_dump(include={*Experiment.model_fields} - _NOT_KEPT)
    if not settings["pool_runs"]:  # folders of before do not have it
        del settings["pool_runs"]
    for section, keys in _MAY_CHANGE.items():
        for key in keys:
            settings[section].pop(key)
    return settings
