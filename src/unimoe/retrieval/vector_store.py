"""The vectors of a corpus on disk: computed in units that a killed run finds again, and read as a mapped file.

A folder holds ``vectors.npy``, one row per document by ascending id, ``ids.json``, the ids by row, and ``store.json``,
which records what the vectors were made from and how many units are done. A unit counts once its rows are on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, InputError
from unimoe.core.io import hash_parts, lock, read_json, write_json
from unimoe.data.collection import Document
from unimoe.retrieval.vector_files import (
    MappedVectors,
    Storage,
    Vectors,
    allocate_vectors,
    checksum,
    checksum_of_rows,
    map_vectors,
)

logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""From N texts to ``(N, D)``."""

Spread = Callable[[Encode, Iterable[Sequence[str]]], Iterator[NDArray[np.float32]]]
"""Embeds several units by a function that embeds one, and yields their vectors in order; ``map`` is one."""

UNIT_CHARACTERS = 2**20
"""Text of one unit, the most that a killed run loses: some ten seconds of a small model on two cores."""

_VERSION = 1


class VectorStore(NamedTuple):
    """Document ids by row, and their vectors ``(N, D)``, mapped from a file."""

    ids: list[str]
    vectors: Vectors


@dataclass(frozen=True)
class _Progress:
    """``store.json``: what the vectors are made from, how the work is cut, and in the last three how far it is."""

    version: int
    fingerprint: str
    corpus: str
    ids: str
    rows: int
    storage: str
    characters: int
    units: int
    dimension: int = 0
    finished: int = 0
    checksum: int = 0

    def with_unit(self, dimension: int, checksum: int) -> _Progress:
        total = (self.checksum + checksum) % 2**64
        return replace(self, dimension=dimension, finished=self.finished + 1, checksum=total)

    def same_work(self, other: _Progress) -> bool:
        return replace(self, dimension=0, finished=0, checksum=0) == replace(other, dimension=0, finished=0, checksum=0)


def encode_corpus(
    encode: Encode,
    corpus: Mapping[str, Document],
    folder: Path,
    *,
    fingerprint: str,
    storage: Storage = "float32",
    characters: int = UNIT_CHARACTERS,
    spread: Spread = map,
    label: str = "document",
    advance: Callable[[int], None] | None = None,
) -> VectorStore:
    """Embed a corpus, or finish embedding it; the units already in the folder are read.

    A unit is a run of documents by falling length, so that little is padded and memory peaks in the first.

    Args:
        encode: embeds the texts of one unit. Its vectors may depend on the unit's other texts, as batches do in the
            last bits: units depend on the corpus alone, and a resumed run ends with the same bits.
        corpus: document id to document.
        folder: holds nothing else; made when needed.
        fingerprint: of everything vectors depend on besides the texts: weights, prompt, dtype, device, lengths,
            libraries. Vectors of another fingerprint, corpus, storage or unit size are replaced, which is logged.
        storage: float16 takes half the space and keeps three digits.
        characters: a unit ends with the document that brings it to this size.
        spread: embeds the units, by default one after the other; several processes embed several at a time.
        label: what errors call a document, before its id.
        advance: called with the number of documents done; at once for units that are done.

    Raises:
        DataError: the corpus is empty; a vector is not finite or zero, which names the document; the number of
            dimensions is another than in the units done.
        UsageError: the folder cannot be written, or the disk has no room.
    """
    if not corpus:
        raise DataError(f"{folder}: no documents to embed; the corpus is empty")
    with lock(folder):
        ids = sorted(corpus)
        units = cut_units([len(corpus[key].full_text) for key in ids], characters)
        asked = _Progress(
            version=_VERSION,
            fingerprint=fingerprint,
            corpus=hash_parts(part for key in ids for part in (key, corpus[key].full_text)),
            ids=hash_parts(ids),
            rows=len(ids),
            storage=storage,
            characters=characters,
            units=len(units),
        )
        progress, vectors = _resume(folder, asked, units)
        if progress.finished:
            write_json(folder / "ids.json", ids, indent=None)
        if advance:
            advance(sum(map(len, units[: progress.finished])))
        left = [[ids[row] for row in unit] for unit in units[progress.finished :]]
        made = spread(encode, ([corpus[key].full_text for key in unit] for unit in left))
        for unit, names in zip(units[progress.finished :], left, strict=True):
            found = _next_unit(made, names, storage, label)
            if not progress.finished:  # now: a model that fails at once leaves nothing
                write_json(folder / "ids.json", ids, indent=None)
            vectors = _write_unit(folder, vectors, (len(ids), found.shape[1]), unit, found)
            progress = progress.with_unit(found.shape[1], checksum(found, unit))
            write_json(folder / "store.json", asdict(progress))
            if advance:
                advance(len(unit))
        return VectorStore(ids, map_vectors(folder / "vectors.npy", (progress.rows, progress.dimension), storage))


def cut_units(lengths: Sequence[int], characters: int) -> list[NDArray[np.int64]]:
    """Cut texts into units of similar length: slices of their indices by falling length, ties by index.

    Args:
        lengths: characters of each text.
        characters: a unit ends with the text that brings it to this size.
    """
    order = np.argsort(-np.array(lengths, dtype=np.int64), kind="stable")
    units, begin, room = [], 0, characters
    for end, row in enumerate(order.tolist(), start=1):
        room -= max(1, lengths[row])
        if room <= 0 or end == len(order):
            units.append(order[begin:end])
            begin, room = end, characters
    return units


def read_store(folder: Path) -> VectorStore:
    """Read finished vectors and check their checksum.

    Raises:
        DataError: a file is missing, damaged, or the work is not finished.
    """
    progress, path = _read_progress(folder / "store.json"), folder / "vectors.npy"
    if progress.finished != progress.units:
        raise DataError(
            f"{folder}: {progress.finished} of {progress.units} units are done; run again to finish the vectors"
        )
    ids = read_json(folder / "ids.json", list[str])
    if hash_parts(ids) != progress.ids:
        raise DataError(f"{folder / 'ids.json'}: not the ids of these vectors; delete {folder} and encode again")
    vectors = map_vectors(path, (progress.rows, progress.dimension), progress.storage)
    if checksum_of_rows(vectors, np.arange(progress.rows)) != progress.checksum:
        raise DataError(f"{path}: the content has changed since it was written; delete {folder} and encode again")
    return VectorStore(ids, vectors)


def read_foreign(path: Path, corpus_ids: Sequence[str], ids: Sequence[str] | None = None) -> VectorStore:
    """Read vectors that another program made.

    Args:
        path: a ``.npy`` file, ``(N, D)`` float32 or float16.
        corpus_ids: the N documents of the corpus, in the order the vectors were made in.
        ids: the ids by row, where they are known. Where they are not, or one occurs twice, rows are taken to be in the
            order of ``corpus_ids``, which is logged.

    Raises:
        DataError: the file is damaged, or does not fit the corpus.
    """
    vectors = map_vectors(path)
    if len(vectors) != len(corpus_ids):
        raise DataError(f"{path}: {len(vectors)} vectors for {len(corpus_ids)} documents; encode this corpus again")
    if ids is None or len(set(ids)) != len(ids):
        what = "has no row ids" if ids is None else "has row ids that occur twice"
        logger.warning("%s: %s; rows are taken to be in the order of the corpus", path, what)
        return VectorStore(list(corpus_ids), vectors)
    known = set(corpus_ids)
    if unknown := next((key for key in ids if key not in known), None):
        raise DataError(f"{path}: row id {unknown!r} is no document of the corpus; give the vectors of this corpus")
    if len(ids) != len(vectors):
        raise DataError(f"{path}: {len(ids)} row ids for {len(vectors)} vectors; give one for each")
    return VectorStore(list(ids), vectors)


def _resume(folder: Path, asked: _Progress, units: list[NDArray[np.int64]]) -> tuple[_Progress, MappedVectors | None]:
    """Return the finished part of the requested work and its file; nothing is finished if the files are of no use."""
    manifest = folder / "store.json"
    if not manifest.exists():
        return asked, None
    try:
        there = _read_progress(manifest)
        if not there.same_work(asked):
            raise DataError(f"{manifest}: made from another model, corpus, or setting")
        vectors = map_vectors(folder / "vectors.npy", (there.rows, there.dimension), there.storage, mode="r+")
        done = np.sort(np.concatenate(units[: there.finished]))
        if checksum_of_rows(vectors, done) != there.checksum:
            raise DataError(f"{folder / 'vectors.npy'}: the content has changed since it was written")
    except DataError as error:
        logger.warning("%s; all vectors are computed again", error)
        manifest.unlink()  # before the file that it describes is replaced
        return asked, None
    return there, vectors


def _write_unit(
    folder: Path, vectors: MappedVectors | None, shape: tuple[int, int], unit: NDArray[np.int64], found: Vectors
) -> MappedVectors:
    """Put the rows of one unit on the disk, in a new file where there is none."""
    path = folder / "vectors.npy"
    if vectors is None:
        vectors = allocate_vectors(path, shape, found.dtype)
    elif vectors.shape != shape:
        raise DataError(
            f"{path}: holds vectors of {vectors.shape[1]} dimensions, and the model now makes {shape[1]}; "
            f"delete {folder} and encode again"
        )
    vectors[unit] = found
    vectors.flush()
    return vectors


def _next_unit(
    made: Iterator[NDArray[np.float32]], ids: Sequence[str], storage: Storage, label: str
) -> NDArray[np.floating]:
    """Return the next unit's vectors as they will be stored; refuse vectors that are zero or not finite."""
    try:
        vectors = next(made)
        if vectors.ndim != 2 or len(vectors) != len(ids):
            raise DataError(f"{len(ids)} texts were embedded and gave an array of shape {vectors.shape}")
        with np.errstate(over="ignore"):
            found = vectors.astype(storage)
        if len(bad := np.flatnonzero(~np.isfinite(found).all(axis=1))):
            raise InputError(int(bad[0]), f"the embedding is not finite in {storage}; try model.dtype float32")
        if len(bad := np.flatnonzero(~found.any(axis=1))):
            raise InputError(int(bad[0]), f"the embedding is zero in {storage}; try another checkpoint")
    except InputError as error:
        raise DataError(f"{label} {ids[error.index]!r}: {error.reason}") from None
    return found


def _read_progress(path: Path) -> _Progress:
    progress = read_json(path, _Progress)
    if progress.version != _VERSION or not 0 < progress.finished <= progress.units:
        raise DataError(f"{path}: not a record of vectors that this version reads; delete it and encode again")
    return progress


def _is_ids(ids: Any) -> bool:
    return isinstance(ids, list) and all(isinstance(key, str) for key in ids)
