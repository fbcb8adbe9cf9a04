"""What a result was made with: code, packages, machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

# Packages whose version can change a score; the bundled collection is made of the last three.
_MODELS = ("torch", "transformers", "peft", "mteb", "bm25s", "rank-bm25")
PACKAGES = ("unimoe", *_MODELS, "pytrec-eval-terrier", "numpy", "scipy", "pandas")


@cache
def git_state() -> tuple[str | None, bool | None]:
    """Return commit and dirty flag of the clone that this package runs from; None twice where there is no clone."""
    root = Path(__file__).parents[3]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    if not (root / ".git").exists():
        return None, None
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git, or no repository that it trusts
        return None, None


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of ``PACKAGES``."""
    installed = {package: list(metadata.distributions(name=package)) for package in PACKAGES}
    return {package: found[0].version if found else "not installed" for package, found in installed.items()}


@cache
def processor_name() -> str:
    """Return the processor's model name where the platform knows it, its architecture otherwise."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
