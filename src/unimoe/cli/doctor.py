"""``unimoe doctor``: what this machine offers, and how long the experiment will take on it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
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
    """Yield findings about this machine as pairs of name and finding, the experiment's duration on the device last."""
    started = time.perf_counter()
    from unimoe.core.io import cache_dir
    from unimoe.data.catalog import available
    from unimoe.data.published import APIDOCS, BEIR_NAMES
    from unimoe.experiment.plan import planned
    from unimoe.models.device import choose_dtype, describe_device, other_work, probe_speed
    from unimoe.results import git_state, package_versions

    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in package_versions().items())
    commit, dirty = git_state()
    changed = " with changes that are not committed" if dirty else ""
    yield "commit", f"{commit[:12]}{changed}" if commit else "not a clone"
    yield "device", describe_device(device)
    dtype = str(choose_dtype(device, experiment.model.dtype, trains=True)).removeprefix("torch.")
    measured = ", ".join(f"{name} {speed / 1e9:,.0f} GFLOP/s" for name, speed in probe_speed(device.type).items())
    said = "; ".join(filter(None, (f"{dtype} (matrix products: {measured})", other_work(device.type))))
    yield "dtype", said
    cache = cache_dir()
    sizes = []
    for folder in sorted(path for path in cache.iterdir() if path.is_dir()):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        sizes.append(f"{folder.name} {size / 1e6:,.0f} MB")
    yield "cache", f"{cache} ({', '.join(sizes) or 'empty'})"
    yield "disk", f"{shutil.disk_usage(cache).free / 2**30:,.0f} GiB free there"
    there = [f"{APIDOCS} (bundled)", *(name for name in BEIR_NAMES if available(name))]
    data = os.environ.get("UNIMOE_DATA")
    yield "collections", f"{', '.join(there)}; UNIMOE_DATA is {data or 'not set'}"
    try:
        yield "main job", "; ".join(planned(experiment, device, started))
    except DataError as error:  # its model or collection is not here yet
        yield "main job", f"no estimate ({error})"
