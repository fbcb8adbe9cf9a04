"""The bundled collection: the API documentation of the installed NumPy, SciPy and pandas (each BSD-3-Clause).

It needs no download, and people wrote its judgments. For every public object with a numpydoc docstring, the summary
sentence is a query and the rest of the docstring a document, without See Also and References. The object's own document
has grade 2, documents of the objects under See Also have grade 1. A document carries no title: the name would give it
away. The documents of a version are the same on every platform; their versions and content hash stand in the manifest.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import atomic_dir, cache_dir, hash_json, lock, read_json, write_json
from unimoe.core.trec import Qrels
from unimoe.data.collection import Collection, Document
from unimoe.data.source import SOURCES, Source
from unimoe.data.sources.apidocs_objects import MODULES, Docstring, PublicName, documented
from unimoe.data.sources.beir_layout import read_beir, write_parts

BUILDER_VERSION = 1
"""To be raised with every change to what is built, so that no cache of the old kind is served."""

SPLITS = {"train": 60, "dev": 15, "test": 25}
"""Percent of the queries. A query's split depends on its object's name alone, so it never moves."""

SHORTEST_TEXT = 150
"""Characters; a shorter remainder mostly says where the full text is, and holds nothing a query could find."""

SHORTEST_QUERY = 3
"""Words."""


@dataclass
class _Layout:
    """The whole collection, all splits: the content of one cache folder."""

    corpus: dict[str, Document] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, Qrels] = field(default_factory=lambda: {split: {} for split in SPLITS})


def load_apidocs(split: str) -> Collection:
    """Load the bundled collection, built on first use (seconds) and kept in the user's cache.

    The cache is keyed by the packages' versions; a folder whose content is not what its manifest says is built anew.

    Args:
        split: ``train``, ``dev`` or ``test``.

    Raises:
        UsageError: another split.
    """
    if split not in SPLITS:
        raise UsageError(f"apidocs has no split {split!r}{did_you_mean(split, SPLITS)}; use {', '.join(SPLITS)}")
    folder = apidocs_folder()
    with lock(folder):
        collection = _read_cached(folder, split)
        if collection is None:
            build_apidocs(folder)
            collection = read_beir(folder, split, name="apidocs")
    return collection


def apidocs_folder() -> Path:
    """Return the folder for the collection of the installed versions, whether it was built yet or not."""
    return cache_dir("collections") / f"apidocs-{hash_json([BUILDER_VERSION, package_versions()])}"


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages whose documentation this is."""
    return {package: version(package) for package in MODULES}


def build_apidocs(folder: Path) -> None:
    """Build the collection as a folder in BEIR layout with a ``manifest.json`` of versions, sizes and hashes."""
    layout = _layout(documented())
    with atomic_dir(folder) as temporary:
        write_parts(temporary, layout.corpus, layout.queries, layout.qrels)
        manifest = {
            "builder_version": BUILDER_VERSION,
            "packages": package_versions(),
            "documents": len(layout.corpus),
            "queries": {split: len(qrels) for split, qrels in layout.qrels.items()},
            "content_hash": {split: read_beir(temporary, split, "apidocs").content_hash for split in SPLITS},
        }
        write_json(temporary / "manifest.json", manifest)


def split_of(query_id: str) -> str:
    """Return the split of a query such as ``q:numpy.linalg.norm``, by the SHA-256 of its id."""
    percent = int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8], "big") % 100
    return next(split for split, bound in zip(SPLITS, accumulate(SPLITS.values()), strict=True) if percent < bound)


def _read_cached(folder: Path, split: str) -> Collection | None:
    try:
        manifest = read_json(folder / "manifest.json", dict[str, Any])
        packages, expected = manifest["packages"], manifest["content_hash"][split]
        collection = read_beir(folder, split, name="apidocs")
    except (DataError, UsageError, KeyError, TypeError):
        return None
    return collection if (packages, collection.content_hash) == (package_versions(), expected) else None


def _layout(docstrings: dict[Docstring, set[PublicName]]) -> _Layout:
    """Make documents, queries and judgments from docstrings and the names each is found under."""
    directory = _Directory(docstrings)
    layout = _Layout(corpus={key: Document("", text) for key, text in sorted(directory.texts.items())})
    by_summary: dict[str, list[Docstring]] = defaultdict(list)
    for docstring in docstrings:
        by_summary[_flat(docstring.summary)].append(docstring)
    for summary, group in by_summary.items():
        owners = {directory.document_of.get(min(docstrings[docstring]).path) for docstring in group}
        owner = owners.pop()
        if owners or owner is None or not _is_query(summary, directory.texts[owner]):
            continue
        names = set().union(*(docstrings[docstring] for docstring in group))
        related = {key for docstring in group for key in directory.targets(docstring, docstrings[docstring])}
        # Not the document's id: tools that drop a document called like the query would drop the answer.
        query_id = f"q:{min(names).path}"
        layout.queries[query_id] = min(docstring.summary for docstring in group)
        layout.qrels[split_of(query_id)][query_id] = {owner: 2} | dict.fromkeys(sorted(related - {owner}), 1)
    # The order of the walk is no one's to promise: numpy.__all__ comes from a set.
    layout.queries = dict(sorted(layout.queries.items()))
    layout.qrels = {split: dict(sorted(qrels.items())) for split, qrels in layout.qrels.items()}
    return layout


def _is_query(summary: str, text: str) -> bool:
    return len(summary.split()) >= SHORTEST_QUERY and summary.rstrip(".") not in _flat(text)


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


class _Directory:
    """The document that each public name leads to. Objects that share a text, such as aliases, share a document.

    Attributes:
        document_of: public name to document id, which is the least of the names that share the document.
        texts: document id to text.
    """

    def __init__(self, docstrings: dict[Docstring, set[PublicName]]) -> None:
        names_of: dict[str, set[PublicName]] = defaultdict(set)
        for docstring, names in docstrings.items():
            if len(docstring.text) >= SHORTEST_TEXT:
                names_of[docstring.text] |= names
        self.texts = {min(names).path: text for text, names in names_of.items()}
        self.document_of = {name.path: key for key, text in self.texts.items() for name in names_of[text]}
        self._tails: dict[tuple[str, str], set[str]] = defaultdict(set)
        for name, key in self.document_of.items():
            package, *parts = name.split(".")
            for start in range(len(parts)):
                self._tails[package, ".".join(parts[start:])].add(key)

    def targets(self, docstring: Docstring, names: set[PublicName]) -> set[str]:
        """Return the documents of the objects listed under See Also in a docstring found under ``names``."""
        found = {self._resolve(target, [name.path for name in sorted(names)]) for target in docstring.see_also}
        return {key for key in found if key is not None}

    def _resolve(self, target: str, owners: list[str]) -> str | None:
        """Look up a name beside its owner, then in the enclosing modules, then as a full path, then by its tail.

        Only the owner's package is searched by tail, and only a tail that leads to one document counts.
        """
        for owner in owners:
            scope = owner
            while scope:
                scope = scope.rpartition(".")[0]
                candidate = f"{scope}.{target}" if scope else target
                if candidate in self.document_of:
                    return self.document_of[candidate]
        package = owners[0].partition(".")[0]
        for short, full in (("np.", "numpy."), ("pd.", "pandas."), ("sp.", "scipy.")):
            if target.startswith(short):
                return self.document_of.get(full + target.removeprefix(short))
        tails = self._tails.get((package, target.removeprefix(f"{package}.")), set())
        return next(iter(tails)) if len(tails) == 1 else None


class ApiDocs(Source):
    """The bundled collection."""

    is_one = True

    def load(self, name: str, split: str) -> Collection:
        """Load one split; see ``load_apidocs``."""
        return load_apidocs(split)

    def available(self, name: str) -> Path | None:
        """Return its folder, which is filled on first use."""
        return apidocs_folder()

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 1: documents listed under See Also count."""
        return 1


SOURCES.add("apidocs", ApiDocs())
