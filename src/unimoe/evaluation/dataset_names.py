"""What the name of a dataset stands for, as it is written on the command line."""

from __future__ import annotations

import re

from unimoe.data.beir_sets import SHORT_NAMES, canonical_name
from unimoe.data.catalog import NANOBEIR, members
from unimoe.data.names import set_name


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
    return [(collection, split or _default_split(collection)) for collection in spelled]


def _default_split(collection: str) -> str:
    return "dev" if set_name(collection) == "msmarco" and not collection.startswith("nanobeir:") else "test"
