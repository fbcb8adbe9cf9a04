"""Embeds texts once: vectors on disk, computed in units that a killed run finds again, and read as a mapped file.

A folder holds ``vectors.npy``, one row per document by ascending id, ``ids.json``, the ids by row, and ``store.json``,
which records what the vectors were made from and how many units are done. A unit counts once its rows are on disk.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, InputError, named_inputs
from unimoe.core.io import (
    Strict,
    atomic_path,
    cache_dir,
    hash_json,
    hash_parts,
    lock,
    read_json,
    write_json,
    write_line,
)
from unimoe.data.collection import Document
from unimoe.models.embedder import Embedder, Encode, Spread, TextKind

logger = logging.getLogger(__name__)

Storage = Literal["float32", "float16"]
StoredVectors = NDArray[np.floating]

MADE_FROM = "made_from.json"
"""The file next to kept vectors that names model and collection."""

UNIT_CHARACTERS = 2**18
"""Text of one unit, the most that a killed run loses: a few forward passes of a GPU, seconds of a small model on two
cores. All embedding cuts a corpus alike, since models share the states of frozen layers batch by batch."""


@dataclass(frozen=True)
class Embedded:
    """Embeddings by ascending id: ``(N, D)`` of unit length, in memory or mapped from a file.

    ``starts`` has the first row of each id where documents have several, one for each passage; None where all have one.
    """

    ids: list[str]
    vectors: StoredVectors
    starts: NDArray[np.int64] | None = None

    def of(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of some ids, ``(n, D)`` float32, in memory."""
        rows = [self._row[key] for key in ids]
        return np.asarray(self.vectors[rows], dtype=np.float32)

    def by_document(self) -> Embedded:
        """Return embeddings of documents or passages, as ``Passages.parts`` names them, as those of the documents."""
        starts, ids = list[int](), list[str]()
        for row, key in enumerate(self.ids):
            if not ids or key.rpartition(" ")[0] != ids[-1]:  # else a further passage of the document before
                starts.append(row)
                ids.append(key)
        return self if len(ids) == len(self.ids) else Embedded(ids, self.vectors, np.array(starts))

    @cached_property
    def _row(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.ids)}


MakeUp = Callable[[Embedder, Mapping[str, str], TextKind, int | None], Embedded]
"""Makes up vectors of texts by id, of a kind and cut to a length."""

_INSTEAD: ContextVar[MakeUp | None] = ContextVar("makes up vectors", default=None)


@contextmanager
def made_up(make_up: MakeUp) -> Iterator[None]:
    """Let a plan make up the vectors that are not kept, in place of all ``cached_embeddings`` of the block."""
    token = _INSTEAD.set(make_up)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def cached_embeddings(
    embedder: Embedder,
    texts: Mapping[str, str],
    kind: TextKind,
    *,
    max_length: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Embedded:
    """Embed texts by id, or read their vectors from the cache; see ``kept_embeddings``."""
    corpus = {key: Document("", text) for key, text in texts.items()}
    make_up = _INSTEAD.get()
    if make_up and not is_kept(embedder, corpus, kind, max_length=max_length):
        return make_up(embedder, texts, kind, max_length)
    return kept_embeddings(embedder, corpus, kind, max_length=max_length, advance=advance)


def kept_embeddings(
    embedder: Embedder,
    corpus: Mapping[str, Document],
    kind: TextKind = "document",
    *,
    folder: Path | None = None,
    prefix: str | None = None,
    max_length: int | None = None,
    batches: Mapping[str, Any] | None = None,
    storage: Storage = "float32",
    weights: str | None = None,
    name: str = "",
    **how: Any,
) -> Embedded:
    """Embed a corpus, or read its vectors where an evaluation has kept them; a killed run is resumed.

    ``folder`` is around all vectors, by default in the user's cache, where ``unimoe cache`` shows the ``name`` of the
    corpus. ``weights`` is the content hash of an adapter or a head, which is no part of ``base_identity``; None where
    there is neither. Other arguments are those of ``Embedder.encode`` and ``encode_corpus``.
    """
    place = kept_folder(
        embedder, corpus, kind, folder, prefix=prefix, max_length=max_length, storage=storage, weights=weights
    )
    return encode_corpus(
        lambda texts: embedder.encode(texts, kind=kind, prefix=prefix, max_length=max_length, **batches or {}),
        corpus,
        place,
        fingerprint=place.name,
        storage=storage,
        made_from={"model": embedder.base_identity, "collection": name},
        texts_hash=place.name.rpartition("-")[2],
        **how,
    )


def kept_folder(
    embedder: Embedder, corpus: Mapping[str, Document], kind: TextKind, folder: Path | None = None, **settings: Any
) -> Path:
    """Return where the vectors of a corpus are kept; a ``dtype`` counts in place of the embedder's."""
    dtype, settings = str(settings.pop("dtype", embedder.dtype)), {k: v for k, v in settings.items() if v is not None}
    model = hash_json([embedder.base_identity, embedder.prompt_name, dtype, kind, {"storage": "float32"} | settings])
    return (folder or cache_dir("vectors")) / f"{model}-{_texts_hash(corpus)}"


def is_kept(embedder: Embedder, corpus: Mapping[str, Document], kind: TextKind = "document", **settings: Any) -> bool:
    """Return whether an evaluation has kept all vectors of a corpus."""
    with suppress(DataError):  # a damaged one is computed again
        store = kept_folder(embedder, corpus, kind, **settings) / "store.json"
        return store.exists() and (found := read_json(store, _Progress)).finished == found.units
    return False


def _texts_hash(corpus: Mapping[str, Document]) -> str:
    return hash_parts(part for key in sorted(corpus) for part in (key, corpus[key].full_text))


class _Progress(Strict):
    """``store.json``: a hash of all that the vectors are made from, and how far they are."""

    content: str
    units: int
    finished: int


def encode_corpus(
    encode: Encode,
    corpus: Mapping[str, Document],
    folder: Path,
    *,
    fingerprint: str,
    texts_hash: str | None = None,
    storage: Storage = "float32",
    characters: int | None = None,
    spread: Spread = map,
    label: str = "document",
    made_from: Mapping[str, str] | None = None,
    advance: Callable[[int], None] | None = None,
) -> Embedded:
    """Embed a corpus, or finish embedding it; the units already in a folder, which holds nothing else, are read.

    ``fingerprint`` is of what vectors depend on besides the texts. Vectors of another one, or of another corpus,
    storage or unit size, are replaced, which is logged. ``texts_hash`` is of the corpus, where it is known: it takes
    seconds for a million documents. ``spread`` lets several processes embed. Errors call a document ``label``;
    ``made_from`` names model and collection for ``unimoe cache``.
    """
    if not corpus:
        raise DataError(f"{folder}: no documents to embed; the corpus is empty")
    path = folder / "vectors.npy"
    characters = characters or UNIT_CHARACTERS
    with lock(folder):
        if made_from:
            write_json(folder / MADE_FROM, made_from)  # its date is the last use
        ids = sorted(corpus)
        units = cut_units([len(corpus[key].full_text) for key in ids], characters)
        content = hash_json([fingerprint, texts_hash or _texts_hash(corpus), storage, characters])
        done, vectors = _resume(folder, content)
        if advance:
            advance(sum(map(len, units[:done])))
        left = [[ids[row] for row in unit] for unit in units[done:]]
        made = spread(encode, ([corpus[key].full_text for key in names] for names in left))
        for unit, names in zip(units[done:], left, strict=True):
            found = _next_unit(made, names, storage, label)
            if vectors is None:  # now: a model that fails at once leaves nothing
                vectors = _allocate(path, (len(ids), found.shape[1]), found.dtype)
                write_line(folder / "ids.json", ids)
            if found.shape[1] != vectors.shape[1]:  # a server's model, or a user's function, has become another
                raise DataError(
                    f"{folder}: vectors of {vectors.shape[1]} dimensions, and the model now makes {found.shape[1]}; "
                    "delete the folder, and encode again"
                )
            vectors[unit] = found
            vectors.flush()
            done += 1
            write_json(folder / "store.json", {"content": content, "units": len(units), "finished": done})
            if advance:
                advance(len(unit))
        return Embedded(ids, np.load(path, mmap_mode="r"))  # while nobody may remove it


def cut_units(lengths: Sequence[int], characters: int) -> list[NDArray[np.int64]]:
    """Cut texts into units of so many characters or a little more: slices of their indices by falling length."""
    order = np.argsort(-np.array(lengths, dtype=np.int64), kind="stable")  # little is padded, and memory peaks first
    units, begin, room = [], 0, characters
    for end, row in enumerate(order.tolist(), start=1):
        room -= max(1, lengths[row])
        if room <= 0 or end == len(order):
            units.append(order[begin:end])
            begin, room = end, characters
    return units


def _resume(folder: Path, content: str) -> tuple[int, np.memmap | None]:
    """Return how many units are done, and their file; none where they were made from something else."""
    manifest = folder / "store.json"
    if not manifest.exists():
        return 0, None
    try:
        there = read_json(manifest, _Progress)
        if there.content != content:
            raise DataError(f"{manifest}: made from another model, corpus, or setting")
        np.load(folder / "vectors.npy", mmap_mode="r")  # "r+" would fill up a file that was cut short
        return there.finished, np.load(folder / "vectors.npy", mmap_mode="r+")
    except (DataError, OSError, ValueError, EOFError) as error:
        logger.warning("%s; all vectors are computed again", error)
        manifest.unlink()  # before the file that it describes is replaced
        return 0, None


def _allocate(path: Path, shape: tuple[int, int], dtype: np.dtype) -> np.memmap:
    """Make a file of zeros and reserve its room on the disk: a full disk would kill a program that writes to a map."""
    with atomic_path(path) as temporary:
        np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        if sys.platform == "linux":
            with temporary.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
    return np.lib.format.open_memmap(path, mode="r+")


def _next_unit(made: Iterator[NDArray[np.float32]], ids: Sequence[str], storage: Storage, label: str) -> StoredVectors:
    """Return the next unit's vectors as they will be stored; refuse vectors that are zero or not finite."""
    with named_inputs(lambda index: f"{label} {ids[index]!r}"), np.errstate(over="ignore"):
        found = next(made).astype(storage)
        for bad, what in ((~np.isfinite(found).all(axis=1), "not finite"), (~found.any(axis=1), "zero")):
            if bad.any():
                remedy = "try model.dtype float32, or another checkpoint"
                raise InputError(int(bad.argmax()), f"the embedding is {what} in {storage}; {remedy}")
    return found
