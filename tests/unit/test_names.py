"""That a type's name has one meaning, wherever in the house it is read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import unimoe

SOURCE = Path(unimoe.__file__).parent


def type_names(path: Path) -> Iterator[tuple[str, int]]:
    """Name and line of the classes and aliases that a module defines, neither constants nor type variables."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield name, node.lineno
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()):
                if name.lstrip("_")[:1].isupper() and not name.isupper():
                    yield name, node.lineno


def test_no_type_name_means_two_things() -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name, line in type_names(path):
            places[name].append(f"{path.relative_to(SOURCE.parent)}:{line}")
    twice = [f"{name}: {' and '.join(where)}" for name, where in places.items() if len(where) > 1]
    assert twice == [], "import the one from the other if they are the same thing, else rename the less public one"
