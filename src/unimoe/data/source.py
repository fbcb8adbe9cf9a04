"""What a source of collections is: a place they come from, and the conventions of those that come from it.

A source of your own is an object with the methods of ``Source``, registered by the word that names it::

    from unimoe.data.source import Source, register_source

    register_source("mine", MySource())  # then --dataset mine:NAME

Inside unimoe it is one file under ``data/sources``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError, did_you_mean, guarded, missing_extra, refused_code
from unimoe.core.registry import Registry
from unimoe.data.collection import Collection
from unimoe.data.published import GRADED_FROM_1, MTEB_TASKS, SHORT_NAMES, TREC_DL, canonical_name


class Source:
    """A place that collections come from. A name in it is what follows the colon.

    What the field has agreed on for a published set holds in every source that knows which set a name means.

    Attributes:
        usage: how a message shows the name of a collection, such as ``mteb:TASK``.
        has_published_names: names begin with the short name of a published set, as ``beir/quora/test`` does.
    """

    usage = ""
    has_published_names = False

    def load(self, name: str, split: str) -> Collection:
        """Load one split.

        Raises:
            UsageError: no such name or split; names the closest.
            UnavailableError: the collection is not here and cannot be downloaded; says what to do.
            DataError: the data is malformed.
        """
        raise NotImplementedError

    def refuse_unknown(self, name: str) -> None:
        """Refuse a name that nothing can have here; by default this shows when it is loaded."""

    def available(self, name: str) -> Path | None:
        """Return the folder or zip that holds a collection, or None where a library of the source keeps it."""
        return None

    def result_name(self, name: str) -> str | None:
        """Return the name that results, captions and file names show; None for the name as it was written."""
        return None

    def set_name(self, name: str) -> str:
        """Return the published set behind a name, in lower case; empty where nothing is known of it."""
        return name.lower().removeprefix("beir/").partition("/")[0] if self.has_published_names else ""

    def mteb_task(self, name: str) -> str | None:
        """Return the task of MTEB that a collection is the data of; None where there is none."""
        forum = re.search(r"(?:^|/)(cqadupstack/\w+)/?$", name.lower()) if self.set_name(name) else None
        return MTEB_TASKS.get(forum[1] if forum else canonical_name(self.set_name(name)))

    def main_metric(self, name: str, split: str) -> str:
        """Return the metric that the field reports first: MRR@10 for MS MARCO, where one passage a query is judged.

        TREC DL's judgments of MS MARCO are graded and many: nDCG@10, as for all other sets.
        """
        graded = self._is_trec_dl(name, split) or "trec-dl" in name
        return "mrr@10" if self.set_name(name).startswith("msmarco") and not graded else "ndcg@10"

    def default_split(self, name: str) -> str:
        """Return the split that is scored where none is named: dev for MS MARCO: its test split is TREC DL's."""
        return "dev" if self.set_name(name) == "msmarco" else "test"

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return the lowest grade that binary measures count as relevant; None where nothing is known."""
        if self._is_trec_dl(name, split):
            return TREC_DL
        published = {"cqadupstack", *SHORT_NAMES, *GRADED_FROM_1}
        return 1 if canonical_name(self.set_name(name)) in published else None

    def _is_trec_dl(self, name: str, split: str) -> bool:
        """Return whether judgments are those of TREC DL, which BEIR calls the test split of MS MARCO."""
        return self.set_name(name) == "msmarco" and "test" in (split, name.rpartition("/")[2])


SOURCES: Registry[Source] = Registry("source of collections", "unimoe.data.sources", "unimoe.sources")

_METHODS = [name for name, value in vars(Source).items() if callable(value) and not name.startswith("_")]

SHORT_NAME = "short name"
"""The source of names without a colon."""


def register_source(word: str, source: Source) -> None:
    """Add a source of one's own, of names that begin with a word and a colon; a UsageError where the word is taken."""
    SOURCES.add(word, guarded(f"source {word!r} raised", source, _METHODS))


def find_source(collection: str) -> tuple[Source, str]:
    """Return the source of a collection and its name there."""
    word, separator, rest = collection.partition(":")
    if not separator:
        return SOURCES[SHORT_NAME], collection
    usages = {known: source.usage for known, source in SOURCES.items() if source.usage}
    if word not in usages or not rest:
        hint = "" if word in usages else did_you_mean(word, usages)
        raise UsageError(f"collection {collection!r}: write a short name, {listed(usages.values())}{hint}")
    return SOURCES[word], rest


def listed(words: Iterable[str]) -> str:
    """Return words as a sentence lists them: ``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}"


DOWNLOAD_ADVICE = f"install the extra ({install_extra('collections')}) and connect to the network"


class UnavailableError(DataError):
    """A collection that exists, but is not here and cannot be downloaded."""


def user_folder() -> Path | None:
    """Return the user's folder of collections, which UNIMOE_DATA names; None where it is not set."""
    folder = os.environ.get("UNIMOE_DATA")
    return Path(folder) if folder else None


def not_at_hand(name: str, advice: str, cause: Exception) -> UnavailableError:
    """Return the error for a collection that could not be fetched; the advice is an imperative.

    What the system refuses, such as a file on a full disk, is raised as it is.
    """
    if refused_code(cause):
        raise cause
    needs = missing_extra(cause) if isinstance(cause, ModuleNotFoundError) else None
    reason = str(needs or " ".join(f"{type(cause).__name__}: {cause}".split())[:200])
    return UnavailableError(f"collection {name!r} is not available; {advice} ({reason})")
