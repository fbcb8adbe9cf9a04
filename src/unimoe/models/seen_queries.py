"""The queries that trained a model, and those that chose it, which lie next to its weights as hashes of their texts.

They tell every later evaluation, on whatever collection and machine, which of its queries the model has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from unimoe.core.errors import first_few
from unimoe.core.io import Strict, hash_parts, read_json, write_line
from unimoe.results.topics import normal

SEEN_FILE = "unimoe.queries.json"


class SeenQueries(Strict):
    """Hashes of the texts of queries, sorted; texts that differ in case, space or Unicode form have one hash."""

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()

    @classmethod
    def of(cls, train: Iterable[str], dev: Iterable[str] = ()) -> SeenQueries:
        """Return those of the texts of queries; an empty text is none."""
        return cls(train=_hashes(train), dev=_hashes(dev))

    def __or__(self, other: SeenQueries) -> SeenQueries:
        train, dev = ({*mine, *theirs} for mine, theirs in ((self.train, other.train), (self.dev, other.dev)))
        return SeenQueries(train=tuple(sorted(train)), dev=tuple(sorted(dev)))

    def caveats(self, queries: Mapping[str, str]) -> list[str]:
        """Return why scores on queries, id to text, are no scores on unseen ones; empty where none was seen."""
        hash_of = {key: _hash(text) for key, text in queries.items()}
        found = []
        for how, known in (("trained", {*self.train}), ("chose", {*self.dev})):
            ids = sorted(key for key, text in hash_of.items() if text in known)
            if len(ids) == len(queries) > 0:
                found.append(f"these queries {how} the checkpoint")
            elif ids:
                found.append(f"{len(ids):,} of {len(queries):,} queries {how} the checkpoint ({first_few(ids)})")
        return found

    def write(self, folder: Path) -> None:
        """Write them into the folder of a model."""
        write_line(folder / SEEN_FILE, self.model_dump())


NOTHING_SEEN = SeenQueries()


def seen_by(*folders: Path | None) -> SeenQueries:
    """Read what the models in some folders have seen; a folder that says nothing, or is none, adds nothing."""
    found = NOTHING_SEEN
    for folder in folders:
        if folder is not None and (path := folder / SEEN_FILE).is_file():
            found |= read_json(path, SeenQueries)
    return found


def _hashes(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_hash(text) for text in texts} - {_hash("")}))


def _hash(text: str) -> str:
    return hash_parts([normal(text)])
