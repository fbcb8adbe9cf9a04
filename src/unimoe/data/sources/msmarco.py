"""MS MARCO passage ranking, split dev, in the files as Microsoft publishes them: tab-separated, without header.

``qrels.dev.small.tsv``     qid, 0, pid, 1: the judgments of 6,980 queries
``queries.dev.small.tsv``   qid, query
``collection.tsv``          pid, passage: 8.84 M lines
``top1000.dev``             qid, pid, query, passage: up to 1,000 candidates per query, **in no order**

``top1000.dev`` repeats queries and passages, so with the judgments it makes a collection of its own: its corpus is the
candidates. Some characters of the published text were decoded wrongly long ago; they are kept as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.core.trec import text_lines
from unimoe.data.collection import Collection, Document, assemble, describe_collection, describe_qrels
from unimoe.formats.qrels import read_qrels

SPLIT = "dev"
QRELS, QUERIES, PASSAGES, TOP1000 = "qrels.dev.small.tsv", "queries.dev.small.tsv", "collection.tsv", "top1000.dev"
LAYOUT = f"{QRELS} with {PASSAGES} and {QUERIES}, or with {TOP1000} (each may end in .gz)"

_COLUMNS = {QUERIES: ("qid", "query"), PASSAGES: ("pid", "passage"), TOP1000: ("qid", "pid", "query", "passage")}


def msmarco_files(folder: Path) -> dict[str, Path]:
    """Return the published files that a folder holds, plain or ``.gz``, by published name."""
    found = ((name, path) for name in (QRELS, *_COLUMNS) for path in (folder / f"{name}.gz", folder / name))
    return {name: path for name, path in found if path.is_file()}


def is_msmarco_folder(folder: Path) -> bool:
    """Return whether the files that make a collection exist, without reading them."""
    return not _missing(msmarco_files(folder))


def read_msmarco(folder: Path, split: str, name: str | None = None) -> Collection:
    """Read a folder of published files; its name is the collection's by default.

    Passages have no titles. Where ``collection.tsv`` is absent the corpus is the passages of ``top1000.dev``, and
    ``candidates_only`` is set.
    """
    if split != SPLIT:
        raise UsageError(f"{folder}: no split {split!r}{did_you_mean(split, [SPLIT])}; there is {SPLIT}")
    files = msmarco_files(folder)
    if missing := _missing(files):
        raise DataError(f"{folder}: no {' and no '.join(missing)}; MS MARCO needs {LAYOUT}")
    card = describe_collection(folder)
    collection = assemble(
        name or folder.name,
        split,
        ((key, Document("", text)) for key, text in _texts(files, PASSAGES)),
        _texts(files, QUERIES),
        read_qrels(files[QRELS]),
        relevance_level=describe_qrels(files[QRELS]).relevance_level or card.relevance_level,
        language=card.language,
        excludes_self=card.excludes_self,
    )
    return replace(collection, candidates_only=PASSAGES not in files)


def read_top1000(path: Path) -> dict[str, list[str]]:
    """Read ``top1000.dev``: query id to passage ids, in the order of the file, which is no ranking."""
    candidates = gathered((query_id, passage_id) for query_id, passage_id, _, _ in _lines(path, TOP1000))
    for query_id, passage_ids in candidates.items():
        if len(set(passage_ids)) < len(passage_ids):
            twice = Counter(passage_ids).most_common(1)[0][0]
            raise DataError(f"{path}: passage {twice!r} is listed twice for query {query_id!r}; remove one line")
    return candidates


def _missing(files: dict[str, Path]) -> list[str]:
    needed = [QRELS] if TOP1000 in files else [QRELS, PASSAGES, QUERIES]
    return [name for name in needed if name not in files]


def _texts(files: dict[str, Path], name: str) -> Iterable[tuple[str, str]]:
    """Return ids and texts of a published file, or of ``top1000.dev`` where that file is absent."""
    if name in files:
        return ((key, text) for key, text in _lines(files[name], name))
    key_at, text_at = (_COLUMNS[TOP1000].index(column) for column in _COLUMNS[name])
    # Each pair once; an id with two texts stays, for ``assemble`` to count.
    return dict.fromkeys((fields[key_at], fields[text_at]) for fields in _lines(files[TOP1000], TOP1000))


def _lines(path: Path, name: str) -> Iterator[list[str]]:
    columns = _COLUMNS[name]
    for number, line in text_lines(path):
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise DataError(
                f"{path}:{number}: a line has {len(columns)} fields parted by tabs ({', '.join(columns)}), "
                f"this one {len(fields)}; fix it, or fetch the file again"
            )
        yield fields
