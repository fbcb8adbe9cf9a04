"""What a message tells a user to type: it fits how unimoe is installed here, from a clone or as a wheel."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def clone() -> Path | None:
    """Return the clone that this package is run from; None for an installed wheel."""
    root = Path(__file__).parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "unimoe").is_dir() else None


@cache
def _by_uv() -> bool:
    """Return whether uv made the environment of this clone."""
    made = Path(sys.prefix, "pyvenv.cfg")
    return clone() is not None and made.is_file() and "\nuv = " in f"\n{made.read_text('utf-8')}"


def _is_released() -> bool:
    """Return whether the package index has this version: that of a tag, since one between tags has ``.dev``."""
    return ".dev" not in version("unimoe")


def install_extra(extra: str) -> str:
    """Return the command that installs an extra, such as ``models``."""
    if _by_uv():
        return f"uv sync --extra {extra}"
    if clone() is not None:
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'unimoe[{extra}]'" if _is_released() else f"pip install '.[{extra}]' in a clone of unimoe"


def install_packages(*packages: str, without_dependencies: str | None = None) -> str:
    """Return what installs packages that a clone's environment has; one of them without what it depends on."""
    if _by_uv():
        return "uv sync"
    alone = f"pip install --no-deps {without_dependencies}" if without_dependencies else ""
    return " && ".join(filter(None, [alone, f"pip install {' '.join(packages)}" if packages else ""]))


def run_command(arguments: str) -> str:
    """Return how a user starts a command, such as ``train-head``."""
    return f"{'uv run ' if _by_uv() else ''}unimoe {arguments}"
