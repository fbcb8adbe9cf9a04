"""Collections by name: ``load_collection`` finds the data, other functions say what is known of a name.

apidocs             the bundled collection
scifact             a folder of that name under $UNIMOE_DATA, or the zip of a BEIR set there, else a download
cqadupstack/tex     the same; CQADupStack is twelve collections
path:DIR            a folder in BEIR layout, or with the files of MS MARCO's passage ranking
nanobeir:SciFact    a NanoBEIR set; ``nanobeir:de/SciFact`` in German
bright:biology      a domain of BRIGHT, ``bright:biology-long`` with whole web pages
miracl:ko           a language of MIRACL, ``miracl:ko-hard`` over its pooled documents
ir_datasets:ID      anything ir_datasets knows; the id names the split too
mteb:TASK           an MTEB retrieval task, ``mteb:TASK:SUBSET`` where it has several subsets
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unimoe.checks.texts import OWN
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.limits import name_problem, shortened
from unimoe.data.collection import Collection
from unimoe.data.published import APIDOCS, BEIR_NAMES, CQADUPSTACK, FAMILY_NAMES, SHORT_NAMES, canonical_name
from unimoe.data.source import SOURCES, find_source, listed
from unimoe.data.sources.beir_sets import local_path
from unimoe.data.sources.nanobeir import NANOBEIR


def load_collection(name: str, split: str) -> Collection:
    """Load one split of a collection by name; see the module's top. Errors are those of ``Source.load``."""
    refuse_unknown(name)
    source, rest = find_source(name)
    collection = source.load(rest, split)
    if not isinstance(collection, Collection):
        raise DataError(f"{name}: its source returned {type(collection).__name__}; return a Collection")
    if source.mteb_task(rest) is not None:  # every evaluation heeds its rule, so nothing is left to state
        collection = replace(collection, checks=tuple(check for check in collection.checks if check.name != OWN))
    level = None if collection.level_stated else source.relevance_level(rest, split)
    return collection if level is None else replace(collection, relevance_level=level, level_stated=True)


def refuse_unknown(name: str) -> None:
    """Refuse a name that no collection can have, without loading anything."""
    source, rest = find_source(name)
    if ":" in name:
        source.refuse_unknown(rest)
        return
    if len(members(name)) > 1:
        raise UsageError(
            f"{name} is {len(CQADUPSTACK)} collections, each with its own corpus; write one of {', '.join(CQADUPSTACK)}"
        )
    if canonical_name(name) not in SHORT_NAMES and local_path(name) is None:
        usages = [source.usage for _, source in SOURCES.items() if source.usage]
        close = did_you_mean(canonical_name(name), (APIDOCS, *SHORT_NAMES, *NANOBEIR, *FAMILY_NAMES))
        raise UsageError(
            f"unknown collection {name!r}{close}; known are {', '.join((APIDOCS, *BEIR_NAMES))}, "
            f"{CQADUPSTACK[0]} and its {len(CQADUPSTACK) - 1} siblings, folders under UNIMOE_DATA, {listed(usages)}"
        )


def members(name: str) -> tuple[str, ...]:
    """Return the collections that a name means: CQADupStack's twelve, or the name itself."""
    return CQADUPSTACK if canonical_name(name) == "cqadupstack" else (name,)


def available(name: str) -> Path | None:
    """Return the folder or zip that a collection can be read from without a network.

    None also where ir_datasets, mteb or the Hugging Face hub keep the data.
    """
    source, rest = find_source(name)
    return source.available(rest)


def result_name(name: str) -> str:
    """Return the name under which results, captions and file names show a collection: its own, or its source's.

    A name that tables and file names cannot show is a UsageError.
    """
    source, rest = find_source(name)
    found = source.result_name(rest) or name
    if problem := name_problem(found):
        raise UsageError(
            f'collection {shortened(name)!r} is called {shortened(found)!r}, which {problem}; state another "name" in '
            "its collection.json, or rename the folder"
        )
    return found
