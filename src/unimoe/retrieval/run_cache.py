"""Keeps runs in the user's cache, each with a hash of its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unimoe.core.errors import DataError
from unimoe.core.io import hash_file, lock, read_json, write_json
from unimoe.core.trec import Run, read_run, write_run
from unimoe.data.collection import Collection


def cached_run(path: Path, collection: Collection, tag: str, compute: Callable[[], Run]) -> Run:
    """Read a run over a collection's queries from a file, or compute it and write it there in TREC's format.

    A second file holds the hash of the first one's content: a run that was cut short or changed is computed again.

    Args:
        path: named by a content hash of everything that the run depends on.
        collection: whose queries it ranks.
        tag: what made it, for the file.
        compute: makes it.
    """
    with lock(path):
        run = read_cached(path)
        if run is None:
            run = compute()
            write_run(path, run, tag)
            write_json(path.with_suffix(".json"), {"collection": collection.name, "run": hash_file(path)})
    # A TREC file has no line for a query without candidates.
    return {query_id: run.get(query_id, {}) for query_id in collection.queries}


def read_cached(path: Path) -> Run | None:
    """Read a run that ``cached_run`` left; None where there is none, or it is damaged."""
    try:
        sound = read_json(path.with_suffix(".json"), dict[str, str]).get("run") == hash_file(path)
        return read_run(path) if sound else None
    except DataError:
        return None
