"""Where collections come from: ``load_collection`` takes a name and finds the data.

apidocs             the bundled collection, built from installed packages
scifact             a folder of that name under $UNIMOE_DATA, or the zip of a BEIR set there, else a download
cqadupstack/tex     likewise; CQADupStack is twelve collections
path:DIR            a folder in BEIR layout, or with the files of MS MARCO's passage ranking
nanobeir:SciFact    a NanoBEIR set
ir_datasets:ID      anything ir_datasets knows; the id names the split too
mteb:TASK           an MTEB retrieval task, ``mteb:TASK:SUBSET`` where it has several subsets
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unimoe.data.availability import UnavailableError
from unimoe.data.collection import Collection
from unimoe.data.levels import known_level
from unimoe.data.names import result_name
from unimoe.data.sources.apidocs import apidocs_folder, load_apidocs
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir
from unimoe.data.sources.beir_sets import (
    ALIASES,
    BEIR_NAMES,
    CQADUPSTACK,
    SHORT_NAMES,
    at_hand,
    canonical_name,
    folder_of,
)
from unimoe.data.sources.from_ir_datasets import load_ir_datasets
from unimoe.data.sources.from_mteb import load_mteb
from unimoe.data.sources.msmarco import is_msmarco_folder, msmarco_files, read_msmarco
from unimoe.data.sources.nanobeir import NANOBEIR, load_nanobeir, nanobeir_folder
from unimoe.errors import UsageError, did_you_mean

__all__ = [
    "ALIASES",
    "BEIR_NAMES",
    "CQADUPSTACK",
    "NANOBEIR",
    "UnavailableError",
    "available",
    "load_collection",
    "members",
    "refuse_unknown",
    "result_name",
]


def load_collection(name: str, split: str) -> Collection:
    """Load one split of a collection.

    Args:
        name: ``apidocs``, a short name, or a source and a name in it; see the module's top.
        split: for example ``test``; with ``ir_datasets:`` only a label.

    Raises:
        UsageError: no such name or split; names the closest.
        UnavailableError: neither at hand nor to be downloaded; says what to do.
        DataError: the data is malformed.
    """
    refuse_unknown(name)
    collection = _load(name, split)
    level = None if collection.level_stated else known_level(name, split)
    return collection if level is None else replace(collection, relevance_level=level, level_stated=True)


def _load(name: str, split: str) -> Collection:
    source, separator, rest = name.partition(":")
    if source == "path":
        return _read_folder(Path(rest), split, result_name(name))
    if separator:
        return _LOADERS[source](rest, split)
    if name == "apidocs":
        return load_apidocs(split)
    canonical = canonical_name(name)
    return _read_folder(folder_of(name), split, canonical if canonical in SHORT_NAMES else name)


def refuse_unknown(name: str) -> None:
    """Refuse a name that no collection can have, without loading anything.

    Raises:
        UsageError: no such short name or source; names the closest.
    """
    source, separator, rest = name.partition(":")
    if separator and (source not in _SOURCES or not rest):
        raise UsageError(
            f"collection {name!r}: write a short name, path:DIR, nanobeir:NAME, ir_datasets:ID or mteb:TASK"
            f"{did_you_mean(source, _SOURCES)}"
        )
    if separator or name == "apidocs":
        return
    if len(members(name)) > 1:
        raise UsageError(
            f"{name} is {len(CQADUPSTACK)} collections, each with its own corpus; write one of {', '.join(CQADUPSTACK)}"
        )
    if canonical_name(name) not in SHORT_NAMES and at_hand(name) is None:
        raise UsageError(
            f"unknown collection {name!r}{did_you_mean(canonical_name(name), ('apidocs', *SHORT_NAMES, *NANOBEIR))}; "
            f"known are {', '.join(('apidocs', *BEIR_NAMES))}, {CQADUPSTACK[0]} and its {len(CQADUPSTACK) - 1} "
            "siblings, folders under UNIMOE_DATA, path:DIR, nanobeir:NAME, ir_datasets:ID and mteb:TASK"
        )


def available(name: str) -> Path | None:
    """The folder or zip that a collection can be read from without a network, or None.

    ``apidocs`` is always at hand; its folder is filled on first use. What ir_datasets, mteb and the Hugging Face hub
    keep is theirs to know.
    """
    if name == "apidocs":
        return apidocs_folder()
    source, separator, rest = name.partition(":")
    if source == "nanobeir":
        return nanobeir_folder(rest)
    place = Path(rest) if source == "path" else None if separator else at_hand(name)
    if place is None:
        return None
    is_zip = not separator and place.is_file()
    return place if is_zip or is_beir_folder(place) or is_msmarco_folder(place) else None


def members(name: str) -> tuple[str, ...]:
    """The collections that a name stands for: CQADupStack's twelve, or the name itself."""
    return CQADUPSTACK if canonical_name(name) == "cqadupstack" else (name,)


def _read_folder(folder: Path, split: str, name: str) -> Collection:
    """Read a folder in either layout; one that lacks something is read as the layout its files belong to."""
    if msmarco_files(folder) and not is_beir_folder(folder):
        return read_msmarco(folder, split, name)
    return read_beir(folder, split, name)


_LOADERS = {"nanobeir": load_nanobeir, "ir_datasets": load_ir_datasets, "mteb": load_mteb}
_SOURCES = ("path", *_LOADERS)
