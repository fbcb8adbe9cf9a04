"""What the name of a dataset stands for, as it is written on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from unimoe.data.catalog import NANOBEIR, default_split, members, result_name
from unimoe.data.sources.beir_sets import SHORT_NAMES, canonical_name
from unimoe.description import COLLECTION_FILE
from unimoe.errors import UsageError


def collections_of(name: str) -> list[tuple[str, str]]:
    """The collections that a name stands for, each in the catalogue's spelling and with the split to score.

    Args:
        name: as in the catalogue, ``cqadupstack`` for its twelve. ``@dev`` at the end chooses a split; without it the
            split is test, for MS MARCO dev.
    """
    match = re.fullmatch(r"(.+)@([\w.-]+)", name)
    name, split = match.groups() if match else (name, None)
    published = {known.lower(): known for known in (*SHORT_NAMES, *NANOBEIR)}
    spelled = (published.get(canonical_name(member), member) for member in members(name))
    return [(collection, split or default_split(collection)) for collection in spelled]


def refuse_equal_names(collections: Iterable[str]) -> None:
    """Refuse collections whose results would take each other's place.

    Args:
        collections: names in the catalogue.

    Raises:
        UsageError: two have one name in results, whatever its case, or one is named twice.
    """
    seen: dict[str, str] = {}
    for collection in collections:
        name = result_name(collection)
        other = seen.get(name.casefold())
        seen[name.casefold()] = collection
        if other == collection:
            raise UsageError(f"{collection} is named twice; its results would take each other's place, name it once")
        if other is not None:
            folder = next((c for c in (collection, other) if c.startswith("path:")), other).removeprefix("path:")
            raise UsageError(
                f"{other} and {collection} would both be {name!r} in results; "
                f"state another name in {Path(folder, COLLECTION_FILE)}"
            )
