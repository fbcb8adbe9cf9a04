"""What a catalogue name stands for: the set behind it, and the name that results show."""

from __future__ import annotations

from pathlib import Path

from unimoe.data.sources.msmarco import is_msmarco_folder
from unimoe.description import describe_collection


def set_name(collection: str) -> str:
    """Return the set behind a catalogue name: ``quora`` of ``path:data/quora`` and of ``ir_datasets:beir/quora/test``.

    A folder with the official files of MS MARCO is ``msmarco``, whatever it is called.
    """
    source, separator, rest = collection.partition(":")
    if source == "path":
        return "msmarco" if is_msmarco_folder(Path(rest)) else Path(rest).name.lower()
    return (rest if separator else source).lower().removeprefix("beir/").partition("/")[0]


def result_name(collection: str) -> str:
    """Return the name under which results, captions and file names show a collection.

    Args:
        collection: its name in the catalogue.

    Returns:
        For ``path:DIR`` what the folder's ``collection.json`` states, else the folder's name, with ``cqadupstack/``
        before it where that is the folder around it; every other name as it is.

    Raises:
        DataError: ``collection.json`` is malformed.
    """
    source, separator, rest = collection.partition(":")
    if not separator or source != "path":
        return collection
    folder = Path(rest)
    if stated := describe_collection(folder).name:
        return stated
    place = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
    return f"cqadupstack/{place.name}" if place.parent.name.lower() == "cqadupstack" else place.name
