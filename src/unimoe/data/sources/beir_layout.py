"""The BEIR layout: a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``, each plain or ``.gz``.

``corpus.jsonl`` has one object per line with ``_id``, ``title`` (may be absent) and ``text``; ``queries.jsonl`` has
``_id`` and ``text`` and holds the queries of every split; qrels are tab-separated under the header
``query-id corpus-id score``. Keys beyond these are ignored. A ``collection.json`` may state name and relevance level.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import Strict, atomic_dir, changed_file, ensure_dir, parse_json, read_json, write_json
from unimoe.core.trec import Qrels, read_qrels, text_lines
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.collection_card import COLLECTION_FILE, describe_collection, describe_qrels

LABELS_FILE = "labels.json"
"""The manifest of a collection whose labels `unimoe label-pairs` has made: what they depend on, hashes of the files."""

LAYOUT = "corpus.jsonl, queries.jsonl and qrels/<split>.tsv (each may end in .gz)"


class _LabelsMade(Strict):
    files: dict[str, str] = Field(default_factory=dict)


def read_beir(folder: Path, split: str, name: str | None = None) -> Collection:
    """Read one split of a folder in BEIR layout.

    Args:
        folder: the folder that holds ``corpus.jsonl``.
        split: name of a file in ``qrels``, without its ending.
        name: the collection's name; by default the one that ``collection.json`` states, else the folder's.

    Raises:
        DataError: a file is missing or malformed; names file and line.
        UsageError: no such split; lists those there are.
    """
    name = describe_collection(folder).name or folder.name if name is None else name
    corpus, queries = _part(folder, "corpus.jsonl"), _part(folder, "queries.jsonl")
    files = split_files(folder)
    if split not in files:
        raise UsageError(
            f"{folder}: no split {split!r}{did_you_mean(split, files)}; there is {', '.join(files) or 'none'}"
        )
    _refuse_changed_labels(folder)
    return assemble(
        name,
        split,
        _documents(corpus),
        _queries(queries),
        read_qrels(files[split]),
        judged_elsewhere={key for other, file in files.items() if other != split for key in read_qrels(file)},
        relevance_level=describe_qrels(files[split]).relevance_level,
    )


def split_files(folder: Path) -> dict[str, Path]:
    """Return split name to qrels file, in alphabetical order; empty where the folder has no ``qrels``."""
    files = sorted((folder / "qrels").glob("*.tsv.gz")) + sorted((folder / "qrels").glob("*.tsv"))
    return dict(sorted((file.name.removesuffix(".gz").removesuffix(".tsv"), file) for file in files))


def is_beir_folder(folder: Path) -> bool:
    """Return whether the files of the layout exist, without reading them."""
    return bool(_find(folder, "corpus.jsonl") and _find(folder, "queries.jsonl") and split_files(folder))


def write_beir(collection: Collection, folder: Path, *, compress: bool = False) -> None:
    """Write a collection as a new folder in BEIR layout, whole or not at all.

    Args:
        collection: documents, queries and judgments of one split.
        folder: must not exist yet, or be empty: nothing is ever written over.
        compress: write ``.gz`` files.

    Raises:
        UsageError: the folder holds something, or cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder}: exists already; choose a new folder, or remove this one first")
    with atomic_dir(folder) as temporary:
        write_parts(
            temporary, collection.corpus, collection.queries, {collection.split: collection.qrels}, compress=compress
        )
        if collection.level_stated:
            write_json(temporary / COLLECTION_FILE, {"relevance_level": collection.relevance_level})


def write_parts(
    folder: Path,
    corpus: Mapping[str, Document],
    queries: Mapping[str, str],
    qrels: Mapping[str, Qrels],
    *,
    compress: bool = False,
) -> None:
    """Write the files of the layout for several splits at once; ``qrels`` maps split to judgments."""
    records = ({"_id": key, "title": title, "text": text} for key, (title, text) in corpus.items())
    _write_jsonl(folder / "corpus.jsonl", records, compress)
    _write_jsonl(folder / "queries.jsonl", ({"_id": key, "text": text} for key, text in queries.items()), compress)
    ensure_dir(folder / "qrels")
    for split, judgments in qrels.items():
        with _create(folder / "qrels" / f"{split}.tsv", compress) as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for query, grades in judgments.items():
                file.writelines(f"{query}\t{document}\t{grade}\n" for document, grade in grades.items())


def _refuse_changed_labels(folder: Path) -> None:
    manifest = folder / LABELS_FILE
    made = read_json(manifest, _LabelsMade).files if manifest.is_file() else {}
    if file := changed_file(folder, made):
        raise DataError(
            f"{file}: was changed after the labels were written; make them again, or remove {manifest} if the change "
            "is meant"
        )


def _find(folder: Path, part: str) -> Path | None:
    return next((file for file in (folder / part, folder / f"{part}.gz") if file.is_file()), None)


def _part(folder: Path, part: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one that holds {LAYOUT}")
    file = _find(folder, part)
    if file is None:
        raise DataError(f"{folder}: {part} is missing; a collection needs {LAYOUT}")
    return file


def _documents(path: Path) -> Iterator[tuple[str, Document]]:
    for number, record in _records(path):
        title = record.get("title")
        if title is not None and not isinstance(title, str):
            raise DataError(f"{path}:{number}: title {title!r} is not text; quote it or leave it out")
        yield _id(record, path, number), Document(title or "", _text(record, path, number))


def _queries(path: Path) -> Iterator[tuple[str, str]]:
    for number, record in _records(path):
        yield _id(record, path, number), _text(record, path, number)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in text_lines(path):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not a line of JSON ({error}); mend or remove it") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: not a JSON object with _id and text; mend or remove the line")
        yield number, record


def _id(record: dict[str, Any], path: Path, number: int) -> str:
    key = record.get("_id")
    if type(key) is str:
        return key
    if type(key) is int:
        return str(key)
    state = "there is no _id" if key is None else f"_id {key!r} is neither text nor a whole number"
    raise DataError(f'{path}:{number}: {state}; every line needs one, for example {{"_id": "d1", "text": "..."}}')


def _text(record: dict[str, Any], path: Path, number: int) -> str:
    text = record.get("text")
    if isinstance(text, str):
        return text
    state = "there is no text" if text is None else f"text {text!r} is a {type(text).__name__}"
    raise DataError(f'{path}:{number}: {state}; give it as "text": "...", empty if need be')


def _write_jsonl(path: Path, records: Iterable[dict[str, str]], compress: bool) -> None:
    with _create(path, compress) as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@contextmanager
def _create(path: Path, compress: bool) -> Iterator[TextIO]:
    if not compress:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    # No name and no time in the header: equal collections give equal bytes.
    with (
        path.with_name(f"{path.name}.gz").open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
    ):
        yield text
