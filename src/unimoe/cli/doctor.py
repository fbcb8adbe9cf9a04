"""``unimoe doctor``: what this machine offers, and how long the experiment will take on it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unimoe.cli.options import DEFAULT_EXPERIMENT, Config, Device, chosen_device
from unimoe.core.console import stdout
from unimoe.core.errors import DataError

if TYPE_CHECKING:
    import torch

    from unimoe.config import Experiment


def doctor(config: Config = DEFAULT_EXPERIMENT, device: Device = None) -> None:
    """Show what this machine offers: device, speed, caches, disk, collections; and how long an experiment takes."""
    from unimoe.config.files import load_experiment
    from unimoe.models.loader import refuse_missing_layers

    experiment = load_experiment(config)
    with suppress(DataError):  # a model that is not here yet has no layers to compare with
        refuse_missing_layers(experiment)
    for name, finding in examine(experiment, chosen_device(device)):
        stdout.print(f"{name:<14}{finding}", soft_wrap=True)


def examine(experiment: Experiment, device: torch.device) -> Iterator[tuple[str, str]]:
    """Yield findings about this machine as pairs of name and finding.

    Args:
        experiment: its duration is estimated.
        device: the device that it would run on.
    """
    started = time.perf_counter()
    from unimoe.core.io import cache_dir
    from unimoe.experiment.estimate import planned
    from unimoe.models.device import choose_dtype, describe_device, probe_speed
    from unimoe.results.provenance import package_versions

    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in package_versions().items())
    yield "commit", _commit()
    yield "device", describe_device(device)
    speeds = probe_speed(device.type)
    dtype = str(choose_dtype(device, experiment.model.dtype, trains=True)).removeprefix("torch.")
    measured = ", ".join(f"{name} {speed / 1e9:,.0f} GFLOP/s" for name, speed in speeds.items())
    yield "dtype", f"{dtype} (matrix products: {measured})"
    yield "cache", f"{cache_dir()} ({_sizes(cache_dir())})"
    yield "disk", f"{shutil.disk_usage(cache_dir()).free / 2**30:,.0f} GiB free there"
    yield "collections", _collections()
    try:
        yield "main job", "; ".join(planned(experiment, device, started))
    except DataError as error:  # its model or collection is not here yet
        yield "main job", f"no estimate ({error})"


def _commit() -> str:
    from unimoe.results.provenance import git_state

    commit, dirty = git_state()
    if commit is None:
        return "not a clone"
    return f"{commit[:12]}{' with changes that are not committed' if dirty else ''}"


def _sizes(root: Path) -> str:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    sizes = [f"{folder.name} {_megabytes(folder):,.0f} MB" for folder in folders]
    return ", ".join(sizes) or "empty"


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def _collections() -> str:
    from unimoe.data.catalog import available
    from unimoe.data.sources.beir_sets import BEIR_NAMES

    there = ["apidocs (bundled)", *(name for name in BEIR_NAMES if available(name))]
    folder = os.environ.get("UNIMOE_DATA")
    where = f"UNIMOE_DATA is {folder}" if folder else "UNIMOE_DATA is not set"
    return f"{', '.join(there)}; {where}"
