"""What a result was made with: code, packages, machine."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from unimoe.results import Provenance

PACKAGES = (
    "unimoe",
    "torch",
    "transformers",
    "peft",
    "mteb",
    "bm25s",
    "rank-bm25",
    "pytrec-eval-terrier",
    "numpy",
    "scipy",
    "pandas",
)
"""Packages whose version can change a score; the bundled collection is made of the last three."""


def collect_provenance(
    *,
    device: str,
    dtype: str | None,
    hashes: Mapping[str, str],
    wall_time_s: float,
    items: int | None,
    token_budget: int | None,
    given: Sequence[str],
    usage: Mapping[str, float] | None = None,
) -> Provenance:
    """Return the provenance of a result computed just now.

    Args:
        device: the device in words.
        dtype: what the model computed in; None without a model.
        hashes: content hashes by name.
        wall_time_s: seconds of scoring.
        items: pairs or texts scored in that time; None without a model.
        token_budget: tokens of one forward pass; None without a model.
        given: options and config keys given by hand.
        usage: what a server was paid, by name.
    """
    commit, dirty = git_state()
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=package_versions(),
        device=device,
        dtype=dtype,
        hashes=dict(hashes),
        token_budget=token_budget,
        wall_time_s=wall_time_s,
        items_per_s=items / wall_time_s if items and wall_time_s > 0 else None,
        given=list(given),
        usage=dict(usage or {}),
    )


@cache
def git_state() -> tuple[str | None, bool | None]:
    """Return commit and dirty flag of the clone that this package runs from; None twice where there is no clone."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None, None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of ``PACKAGES``."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


@cache
def processor_name() -> str:
    """Return the processor's model name where the platform knows it, its architecture otherwise."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
