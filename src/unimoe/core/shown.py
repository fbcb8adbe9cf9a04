"""How what a Python function returns shows itself: in a few lines, as a table, as a figure, and as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unimoe.core.errors import UsageError, path_of
from unimoe.core.io import atomic_dir, hash_files
from unimoe.core.limits import shortened, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES, _MOST_LETTERS = 12, 400


class ShownTable(Protocol):
    """The table of ``unimoe.analysis.tables``."""

    def to_html(self) -> str:
        """Return it for a page or notebook."""

    def to_markdown(self) -> str:
        """Return it for GitHub."""

    def to_latex(self) -> str:
        """Return it for a paper."""

    def to_csv(self) -> str:
        """Return it in full precision."""


class View(NamedTuple):
    """What there is to see of a result; each form is made when it is asked for."""

    lines: Sequence[str]
    table: Callable[[], ShownTable]
    figure: Callable[[], Figure]
    write: Callable[[Path], object]  # its files, into an empty folder


class Shown:
    """A result that shows itself at a prompt and in a notebook."""

    @property
    def _view(self) -> View:
        # The analysis shows results of every floor, also of those below it: it is found by name, when it is needed.
        found: View = import_module("unimoe.analysis.shown").view(self)
        return found

    def __repr__(self) -> str:
        lines = [shortened(visible(line), _MOST_LETTERS) for line in self._view.lines]
        more = [f"... and {len(lines) - _MOST_LINES:,} more"] * (len(lines) > _MOST_LINES)
        return "\n".join([*lines[:_MOST_LINES], *more])

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def table(self) -> ShownTable:
        """Return a table with its forms for HTML, Markdown, LaTeX and CSV."""
        return self._view.table()

    def plot(self) -> Figure:
        """Draw a figure of matplotlib, without pyplot: it can be saved, and a notebook shows it.

        Raises:
            UsageError: there is nothing to draw.
        """
        return self._view.figure()

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write the files of this result into a folder of their own, all or none, and return the folder.

        Raises:
            UsageError: the folder holds anything else or, without ``overwrite``, another result.
        """
        target = path_of(folder, "the folder").absolute()
        with atomic_dir(target) as new:
            self._view.write(new)
            wanted = hash_files(new)
            there = [path.name for path in target.iterdir()] if target.exists() else []
            if others := sorted(set(there) - wanted.keys()):
                raise UsageError(f"{folder} holds {others[0]}, which is no part of this; choose another folder")
            if there and not overwrite and hash_files(target) != wanted:
                raise UsageError(f"{folder} holds another result; choose another folder, or give overwrite=True")
        return target
