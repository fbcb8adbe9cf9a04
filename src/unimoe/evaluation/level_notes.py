"""Says where binary measures count grade 1 as relevant though nobody stated that they should."""

from __future__ import annotations

from unimoe.data.catalog import available
from unimoe.data.collection import Collection
from unimoe.description import COLLECTION_FILE
from unimoe.metrics import DEFAULT_METRICS, level_note


def collection_note(name: str, collection: Collection) -> str | None:
    """Return what to know of a collection's relevance level, in one line; None where it was stated or makes nothing.

    Args:
        name: of the collection in the catalogue.
        collection: as it was loaded.
    """
    folder = available(name)
    place = folder / COLLECTION_FILE if folder else f"the {COLLECTION_FILE} of a folder in BEIR layout"
    stated = collection.relevance_level if collection.level_stated else None
    mend = f"state relevance_level in {place}"
    return level_note(DEFAULT_METRICS, collection.qrels, stated, where=collection.name, mend=mend)
