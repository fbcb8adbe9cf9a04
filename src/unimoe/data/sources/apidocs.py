"""The bundled collection: the API documentation of NumPy 2.4.6, SciPy 1.17.1 and pandas 3.1.1.

``data/apidocs`` holds it in BEIR layout, with the licences of its texts; ``scripts/build_apidocs.py`` made it and says
how. It needs no download, and people wrote its judgments.
"""

from __future__ import annotations

from pathlib import Path

from unimoe.core.errors import UsageError, did_you_mean
from unimoe.data.collection import Collection
from unimoe.data.source import SOURCES, Source
from unimoe.data.sources.beir_layout import read_beir

FOLDER = Path(__file__).parents[1] / "apidocs"
SPLITS = ("train", "dev", "test")


class ApiDocs(Source):
    """The bundled collection."""

    is_one = True

    def load(self, name: str, split: str) -> Collection:
        """Read one split."""
        if split not in SPLITS:
            raise UsageError(f"apidocs has no split {split!r}{did_you_mean(split, SPLITS)}; use {', '.join(SPLITS)}")
        return read_beir(FOLDER, split, "apidocs")

    def available(self, name: str) -> Path | None:
        """Return its folder."""
        return FOLDER

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 1: documents listed under See Also count."""
        return 1


SOURCES.add("apidocs", ApiDocs())
