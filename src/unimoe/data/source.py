"""What a source of collections is: a place they come from, and the conventions of those that come from it.

A source of your own is an object with the methods of ``Source``, registered by the word that names it::

    from unimoe.data.source import Source, register_source

    register_source("mine", MySource())  # then --dataset mine:NAME

Inside unimoe it is one file under ``data/sources``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.registry import Registry
from unimoe.data.collection import Collection


class Source:
    """A place that collections come from. A name in it is what follows the colon; with ``is_one`` there is only one.

    Attributes:
        usage: how a message shows the name of a collection, such as ``mteb:TASK``.
        is_one: the source is one collection, which its word alone names.
    """

    usage = ""
    is_one = False

    def load(self, name: str, split: str) -> Collection:
        """Load one split.

        Raises:
            UsageError: no such name or split; names the closest.
            UnavailableError: the collection is not here and cannot be downloaded; says what to do.
            DataError: the data is malformed.
        """
        raise NotImplementedError

    def available(self, name: str) -> Path | None:
        """Return the folder or zip that holds a collection, or None where a library of the source keeps it."""
        return None

    def mteb_task(self, name: str) -> str | None:
        """Return the task of MTEB that a collection is the data of; None where there is none."""
        return None

    def result_name(self, name: str) -> str | None:
        """Return the name that results, captions and file names show; None for the name as it was written."""
        return None

    def main_metric(self, name: str, split: str) -> str:
        """Return the metric that the field reports first."""
        return "ndcg@10"

    def default_split(self, name: str) -> str:
        """Return the split that is scored where none is named."""
        return "test"

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return the lowest grade that binary measures count as relevant; None where nothing is known."""
        return None


SOURCES: Registry[Source] = Registry("source of collections", "unimoe.data.sources", "unimoe.sources")

register_source = SOURCES.add

SHORT_NAME = "short name"
"""The source of names without a colon that no other source has."""


def find_source(collection: str) -> tuple[Source, str]:
    """Return the source of a collection and its name there.

    Raises:
        UsageError: there is no such source; names the closest.
    """
    word, separator, rest = collection.partition(":")
    sources = dict(SOURCES.items())
    if not separator:
        return (sources[word], word) if word in sources and sources[word].is_one else (SOURCES[SHORT_NAME], collection)
    usages = {known: source.usage for known, source in sources.items() if source.usage}
    if word not in usages or not rest:
        hint = "" if word in usages else did_you_mean(word, usages)
        raise UsageError(f"collection {collection!r}: write a short name, {listed(usages.values())}{hint}")
    return sources[word], rest


def listed(words: Iterable[str]) -> str:
    """Return words as a sentence lists them: ``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}"


DOWNLOAD_ADVICE = "install the extra (uv sync --extra collections) and connect to the network"


class UnavailableError(DataError):
    """A collection that exists, but is not here and cannot be downloaded."""


def user_folder() -> Path | None:
    """Return the user's folder of collections, which UNIMOE_DATA names; None where it is not set."""
    folder = os.environ.get("UNIMOE_DATA")
    return Path(folder) if folder else None


def not_at_hand(name: str, advice: str, cause: Exception) -> UnavailableError:
    """Return the error for a collection that could not be fetched; the advice is an imperative."""
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:200]
    return UnavailableError(f"collection {name!r} is not available; {advice} ({reason})")
