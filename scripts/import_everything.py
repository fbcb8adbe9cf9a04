"""Imports every module of unimoe, and all that they import from elsewhere, inside functions too.

    python scripts/import_everything.py

CI runs it with the lowest versions that pyproject.toml allows: a name that one of them lacks ends it with a traceback.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import unimoe


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield each module that a source imports, and the name it takes from it; "" for the module itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def main() -> None:
    found = [module.name for module in pkgutil.walk_packages(unimoe.__path__, "unimoe.")]
    modules = [name for name in found if not name.endswith(".__main__")]
    names: set[tuple[str, str]] = set()
    for name in modules:
        file = importlib.import_module(name).__file__
        names |= set(imported_names(Path(file or "").read_text(encoding="utf-8")))
    for name, part in sorted(names):
        module = importlib.import_module(name)
        if part and not hasattr(module, part):
            importlib.import_module(f"{name}.{part}")
    print(f"{len(modules)} modules of unimoe and {len(names)} names import under Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
