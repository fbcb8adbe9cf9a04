"""The BEIR layout: a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``, each plain or ``.gz``.

``corpus.jsonl`` has one object per line with ``_id``, ``title`` (may be absent) and ``text``; ``queries.jsonl`` has
``_id`` and ``text``, may list in ``excluded_ids`` documents that are no candidates, as BRIGHT does, and holds the
queries of every split; qrels are tab-separated under the header ``query-id corpus-id score``. Keys beyond these are
ignored. A ``collection.json`` may state name, relevance level, language, and whether queries exclude themselves.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import ensure_dir
from unimoe.core.limits import shortened
from unimoe.core.trec import Qrels, text_lines
from unimoe.data.collection import Collection, Document, assemble, describe_collection, describe_qrels
from unimoe.formats.qrels import read_qrels

LAYOUT = "corpus.jsonl, queries.jsonl and qrels/<split>.tsv (each may end in .gz)"


def read_beir(folder: Path, split: str, name: str | None = None, language: str | None = None) -> Collection:
    """Read one split, a file in ``qrels`` without its ending, of a folder in BEIR layout.

    Name and language are those that are given, else those that ``collection.json`` states. Without, the name is the
    folder's, and the script tells the language.
    """
    card, excluded = describe_collection(folder), dict[str, list[str]]()
    if name is None:
        name = card.name or folder.name
    corpus, queries = _find(folder, "corpus.jsonl"), _find(folder, "queries.jsonl")
    if corpus is None or queries is None:
        missing = "queries.jsonl" if corpus else "corpus.jsonl"
        raise DataError(f"{folder}: {missing} is missing; a collection needs {LAYOUT}")
    files = split_files(folder)
    if split not in files:
        raise UsageError(
            f"{folder}: no split {split!r}{did_you_mean(split, files)}; there is {', '.join(files) or 'none'}"
        )
    return assemble(
        name,
        split,
        ((key, Document(title, text)) for key, title, text in _records(corpus)),
        ((key, text) for key, _, text in _records(queries, excluded)),
        read_qrels(files[split]),
        judged_elsewhere={key for other, file in files.items() if other != split for key in read_qrels(file)},
        relevance_level=describe_qrels(files[split]).relevance_level,
        language=language or card.language,
        excluded=excluded,
        excludes_self=card.excludes_self,
    )


def split_files(folder: Path) -> dict[str, Path]:
    """Return split name to qrels file, in alphabetical order; empty where the folder has no ``qrels``."""
    files = sorted((folder / "qrels").glob("*.tsv.gz")) + sorted((folder / "qrels").glob("*.tsv"))
    return dict(sorted((file.name.removesuffix(".gz").removesuffix(".tsv"), file) for file in files))


def is_beir_folder(folder: Path) -> bool:
    """Return whether the files of the layout exist, without reading them."""
    return bool(_find(folder, "corpus.jsonl") and _find(folder, "queries.jsonl") and split_files(folder))


def _find(folder: Path, part: str) -> Path | None:
    return next((file for file in (folder / part, folder / f"{part}.gz") if file.is_file()), None)


def _records(path: Path, excluded: dict[str, list[str]] | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each line; of queries without title, whose excluded ids go into ``excluded``."""
    for number, line in text_lines(path):
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not a line of JSON ({error}); fix or remove it") from None
        if not isinstance(record, dict):
            raise DataError(f"{place}: not a JSON object with _id and text; fix or remove the line")
        key, title, text = record.get("_id"), record.get("title") if excluded is None else None, record.get("text")
        title = "" if title is None else title
        # A bool is an int too.
        if type(key) not in (str, int) or not isinstance(title, str) or not isinstance(text, str):
            wrong = "_id" if type(key) not in (str, int) else "text" if not isinstance(text, str) else "title"
            state = f"{wrong} is {shortened(repr(record[wrong]))}" if wrong in record else f"there is no {wrong}"
            raise DataError(f'{place}: {state}; write a line as {{"_id": "d1", "title": "", "text": "..."}}')
        if excluded is not None and (ids := record.get("excluded_ids")):
            if not isinstance(ids, list) or any(type(one) not in (str, int) for one in ids):
                raise DataError(f'{place}: excluded_ids is {shortened(repr(ids))}; write a list such as ["d1", "d2"]')
            excluded.setdefault(str(key), list(map(str, ids)))
        yield str(key), title, text


def write_parts(
    folder: Path,
    corpus: Mapping[str, Document],
    queries: Mapping[str, str],
    qrels: Mapping[str, Qrels],
    *,
    excluded: Mapping[str, Iterable[str]] | None = None,
    compress: bool = False,
) -> None:
    """Write the files of the layout; ``qrels`` maps split to judgments, ``compress`` writes ``.gz`` files."""
    left_out = {key: {"excluded_ids": sorted(ids)} for key, ids in (excluded or {}).items()}
    documents = ({"_id": key, "title": title, "text": text} for key, (title, text) in corpus.items())
    texts = ({"_id": key, "text": text, **left_out.get(key, {})} for key, text in queries.items())
    for name, records in (("corpus.jsonl", documents), ("queries.jsonl", texts)):
        _write(folder / name, (json.dumps(record, ensure_ascii=False) for record in records), compress)
    ensure_dir(folder / "qrels")
    for split, judgments in qrels.items():
        lines = (f"{query}\t{key}\t{grade}" for query, grades in judgments.items() for key, grade in grades.items())
        _write(folder / "qrels" / f"{split}.tsv", chain(["query-id\tcorpus-id\tscore"], lines), compress)


def _write(path: Path, lines: Iterable[str], compress: bool) -> None:
    with (
        path.with_name(f"{path.name}.gz" if compress else path.name).open("wb") as raw,
        # No name and no time in the header: equal collections give equal bytes.
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if compress else raw as file,
    ):
        # Half a surrogate pair, which JSON may hold and UTF-8 may not, becomes the escape that it was.
        file.writelines(f"{line}\n".encode(errors="backslashreplace") for line in lines)
