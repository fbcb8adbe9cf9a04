"""The direction of imports, and that neither an import nor a test leaves this machine.

A room is a module or package directly under ``unimoe``. Imports inside functions count too: laziness does not turn an
arrow round.
"""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import unimoe

SOURCE = Path(unimoe.__file__).parent

# The house, from the ground up: a room imports only rooms of the floors below its own. A new room needs a floor here,
# and a line in the architecture page. ``__main__`` is the door: it opens the command line.
FLOORS: tuple[set[str], ...] = (
    {"core"},
    {"checks"},
    {"formats"},
    {"data", "metrics"},
    {"config", "results"},
    {"models", "analysis"},
    {"retrieval", "cluster"},
    {"evaluation", "training"},
    {"experiment", "api"},
    {"cli"},
    {"__main__"},
)
BELOW = {room: set[str]().union(*FLOORS[:floor]) for floor, rooms in enumerate(FLOORS) for room in rooms}
# Studies use the house as another package would; the command line finds them by their entry points.
BELOW["studies"] = set[str]().union(*FLOORS[:8])
# Studies' commands take the options that all commands share.
SHARED_WITH_STUDIES = ("unimoe.cli.options.", "unimoe.cli.options.")

WITHOUT_TORCH = {"core", "checks", "formats", "metrics", "config", "results", "analysis"}
HEAVY = {"torch", "transformers", "peft", "mteb", "sentence_transformers", "accelerate"}

MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def dotted(path: Path) -> str:
    return ".".join(("unimoe", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything a module imports, relative imports resolved."""
    package, found = dotted(path).split(".")[: None if path.name == "__init__.py" else -1], list[tuple[int, str]]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], *filter(None, [node.module])] if node.level else []
            prefix = ".".join(base) if node.level else str(node.module)
            found += [(node.lineno, f"{prefix}.{alias.name}") for alias in node.names]
    return found


def may_import(path: Path, name: str) -> bool:
    (room, *study), (top, *rest) = dotted(path).split(".")[1:3], name.split(".")
    if top != "unimoe" or not rest:
        return room not in WITHOUT_TORCH or top not in HEAVY
    if room == "studies" and rest[0] == "studies":  # no other study
        return rest[1] in (*study, "common")
    return rest[0] in {room, *BELOW[room]} or (room == "studies" and name.startswith(SHARED_WITH_STUDIES))


def test_a_room_imports_only_the_floors_below_it() -> None:
    new = {room_of(path) for path in MODULES} - BELOW.keys()
    assert not new, "say in FLOORS where they stand"
    every = [(path, line, name) for path in MODULES for line, name in imports(path)]
    assert [f"{path}:{line}: imports {name}" for path, line, name in every if not may_import(path, name)] == []


def loaded_after(statement: str) -> set[str]:
    """Modules that a fresh interpreter holds after ``statement``."""
    code = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


TORCHLESS = [dotted(path) for path in MODULES if room_of(path) in WITHOUT_TORCH]


@pytest.mark.parametrize(
    ("statement", "not_loaded"),
    [
        (f"import {', '.join(TORCHLESS)}", HEAVY),
        ("import unimoe", HEAVY | {"pandas", "scipy", "matplotlib"}),
        ("import unimoe.cli.status, unimoe.cluster.board", {"torch"}),
        # Half a second on an idle machine: a config's models alone would take that.
        ("import unimoe.cli.app", HEAVY | {"numpy", "pandas", "scipy", "pydantic", "yaml"}),
    ],
    ids=["reading results", "the package", "the status", "the help"],
)
def test_what_is_light_loads_nothing_heavy(statement: str, not_loaded: set[str]) -> None:
    assert not not_loaded & loaded_after(statement)


def test_no_test_reaches_another_machine() -> None:
    with socket.socket() as client:
        for connect in (client.connect, client.connect_ex):
            with pytest.raises(RuntimeError, match="the suite needs no network"):
                connect(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
