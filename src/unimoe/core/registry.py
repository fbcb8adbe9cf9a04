"""Things that are chosen by name, and where they are found: a registry for each folder that anyone can add to.

The files of a folder register what they hold when they are imported, and a registry imports them at the first look-up.
So a new prompt, loss or source is one new file. Another package names its own files as entry points, and a program can
register things before it asks for them. Such a file imports heavy libraries inside its functions: a config is checked
without them.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib import metadata
from typing import Any, Generic, TypeVar

from unimoe.core.errors import UnimoeError, UsageError, did_you_mean

T = TypeVar("T")


@cache
def load_plugins(group: str) -> tuple[Any, ...]:
    """Return what installed packages offer under a group of entry points, such as ``unimoe.losses``.

    An entry names a module, which registers what it holds when it is imported, or, of commands, a mapping.

    Raises:
        UsageError: an entry cannot be loaded; names the package.
    """
    return tuple(map(_loaded, sorted(metadata.entry_points(group=group))))


def load_plugin(group: str, name: str) -> Any:
    """Return what an installed package offers under a group by a name, and load no other.

    Raises:
        UsageError: nothing has that name, or it cannot be loaded; names the closest, or the package.
    """
    entries = {entry.name: entry for entry in metadata.entry_points(group=group)}
    if name not in entries:
        known = ", ".join(sorted(entries))
        raise UsageError(f"there is no {name!r} among {group}{did_you_mean(name, entries)}; use {known}")
    return _loaded(entries[name])


def _loaded(entry: metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except UnimoeError:
        raise
    except Exception as error:
        package = entry.dist.name if entry.dist else "a package"
        raise UsageError(
            f"{package}: its entry point {entry.name} = {entry.value} ({entry.group}) cannot be loaded: "
            f"{type(error).__name__}: {error}; repair or uninstall the package"
        ) from error


class Registry(Generic[T]):
    """Things by name.

    Args:
        kind: what the things are, for messages.
        package: dotted name of the folder of files that register the built-in ones, or of one such file; None where
            unimoe's own are entry points too.
        plugins: group of entry points under which packages name the modules that register theirs.
    """

    def __init__(self, kind: str, package: str | None, plugins: str) -> None:
        self._kind, self._package, self._plugins = kind, package, plugins
        self._things: dict[str, T] = {}
        self._is_filled = False

    def add(self, name: str, thing: T) -> None:
        """Register a thing; a UsageError where the name is taken."""
        if self._things.setdefault(name, thing) is not thing:
            raise UsageError(f"{self._kind} {name!r} exists already; choose another name")

    def __getitem__(self, name: str) -> T:
        return self._things[self.checked(name)]

    def items(self) -> list[tuple[str, T]]:
        """Return names and things in alphabetical order, so that no order hangs on what was imported first."""
        self._fill()
        return sorted(self._things.items(), key=lambda item: item[0])

    def names(self) -> tuple[str, ...]:
        """Return all names in alphabetical order."""
        return tuple(name for name, _ in self.items())

    def checked(self, name: str) -> str:
        """Return the name; a UsageError, which names the closest, where nothing is registered under it."""
        names = self.names()
        if name not in self._things:
            known = f"{did_you_mean(name, names)}; use {', '.join(names)}, or --import the module that registers it"
            raise UsageError(f"there is no {self._kind} {name!r}{known}")
        return name

    def _fill(self) -> None:
        if self._is_filled:
            return
        if self._package is not None:
            package = importlib.import_module(self._package)
            modules = pkgutil.iter_modules(getattr(package, "__path__", ()), f"{self._package}.")
            for module in sorted(found.name for found in modules):
                importlib.import_module(module)
        load_plugins(self._plugins)
        self._is_filled = True  # only now: what failed says so again
