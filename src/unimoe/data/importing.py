"""Collections from what people have: tables of documents, queries and judgments, or one table of labelled pairs.

A table is anything that ``formats.tables`` reads; the names of its columns tell what they hold. ``columns`` names
others: ``{"text": "body"}`` or, for one part alone, ``{"queries.text": "question"}``. Of Elasticsearch and OpenSearch
it takes dumps of hits, the answer of a search, and bulk files. A row that is half made is refused with its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from unimoe.checks.texts import counted
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.io import atomic_dir, write_json
from unimoe.core.limits import checked_number, checked_text, id_problem, name_problem, read_grade, shortened
from unimoe.core.text import is_number
from unimoe.core.trec import Qrels
from unimoe.data.collection import COLLECTION_FILE, Collection, Document, FolderDescription, assemble, described
from unimoe.data.sources.beir_layout import write_parts
from unimoe.data.wrapped_tables import of_stream, part_table, rows_of, unwrapped, with_names
from unimoe.formats.qrels import FIELDS as JUDGMENT
from unimoe.formats.qrels import LAYOUT, load_qrels
from unimoe.formats.tables import (
    DOCUMENT,
    QUERY,
    InputTable,
    Nested,
    opened,
    pick,
    plain_name,
)

_IDS_OF_QUERIES = tuple(name for name in QUERY if name != "query")
_TEXT = ("text", "body", "contents", "content", "passage", "document", "document_text")
_ASKED = ("text", "query_text", "query", "question")
_MAYBE_GRADE = re.compile("label|relev|grade|score|judg|rating|stars|gain")
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "corpus": {"id": ("_id", "id", *DOCUMENT), "text": _TEXT, "title": ("title",)},
    "queries": {"id": ("_id", "id", *_IDS_OF_QUERIES), "text": _ASKED, "excluded": ("excluded_ids",)},
    "qrels": dict(JUDGMENT),
    "table": {
        "query": ("query", "query_text", "question", "search_term", "anchor"),
        "document": ("document", "document_text", "passage", "text", "positive", "answer", "body", "contents"),
        "grade": JUDGMENT["grade"],
        "title": ("title",),
        "query_id": _IDS_OF_QUERIES,
        "document_id": DOCUMENT,
    },
}
"""The columns of each part by field, under their known names, the first two of which it cannot do without."""

_FILE = re.compile(r"(.*?)(-\d{5}-of-\d{5})?\.(jsonl|ndjson|json|csv|tsv|parquet|arrow|txt|trec|qrels?)(\.gz)?")
_CARDS = {COLLECTION_FILE, "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
_SAVED = "data"  # what ``save_to_disk`` calls the files of a split; the folder has its name
_PARTS = {"corpus": {"corpus", "documents", "docs", "passages"}, "queries": {"queries", "query", "topics"}}
_QRELS = {"qrels", "qrel", "judgments"}
_JUDGED = {*_QRELS, "default", "data", "train", "dev", "validation", "test"}


@dataclass
class Imported:
    """What tables hold: all documents and queries, judgments by split, and the ids of rows that repeat others."""

    corpus: dict[str, Document] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, Qrels] = field(default_factory=dict)
    excluded: dict[str, list[str]] = field(default_factory=dict)
    repeated: dict[str, list[str]] = field(default_factory=dict)

    def collection(self, split: str, card: FolderDescription) -> Collection:
        """Return one split, checked as every collection is, with what a description states."""
        name = card.name or "collection"
        found = assemble(
            name,
            split,
            self.corpus.items(),
            self.queries.items(),
            self.qrels[split],
            judged_elsewhere={key for other, qrels in self.qrels.items() if other != split for key in qrels},
            relevance_level=card.relevance_level,
            language=card.language,
            excluded=self.excluded,
            excludes_self=card.excludes_self,
        )
        repeated = (counted(name, kind, ids) for kind, ids in self.repeated.items())
        return replace(found, checks=(*chain.from_iterable(repeated), *found.checks))


def from_tables(
    corpus: object,
    queries: object,
    qrels: object,
    *,
    split: str = "test",
    columns: Mapping[str, str] | None = None,
    **stated: str | int | None,
) -> Collection:
    """Make a collection of three tables.

    Args:
        corpus: ids, texts and, where there are any, titles of documents; or ``{id: text}``.
        queries: ids and texts; or ``{id: text}``.
        qrels: ids of queries and documents, and grades, all 1 where there are none; or ``{query: {document: grade}}``.
        split: what the judgments are called.
        columns: the columns of fields that are not found by a known name; see the module's top.
        stated: ``name``, ``language``, ``relevance_level`` and ``excludes_self``, as in ``collection.json``.

    Raises:
        DataError: a row lacks something or contradicts another, or a judged query is unknown.
        UsageError: this is no table.
    """
    found = read_parts([corpus], [queries], {split: [qrels]}, columns)
    return found.collection(split, described(**stated))


def read_parts(
    corpus: Sequence[object],
    queries: Sequence[object],
    qrels: Mapping[str, Sequence[object]],
    columns: Mapping[str, str] | None = None,
) -> Imported:
    """Read documents, queries and the judgments of each split from tables; errors are those of ``from_tables``."""
    reader = _CollectionReader(columns or {})
    found = reader.found
    for row in chain.from_iterable(reader.rows(table, "corpus") for table in corpus):
        reader.keep("document", row.identifier("id"), Document(row.text("title", ""), row.text("text")), row)
    for row in chain.from_iterable(reader.rows(table, "queries") for table in queries):
        key = row.identifier("id")
        reader.keep("query", key, row.text("text"), row)
        if not _is_missing(excluded := row.cells.get("excluded")) and excluded != "":
            if isinstance(excluded, str) or not isinstance(excluded, Iterable):
                raise row.refusal(f'excluded_ids is {shortened(repr(excluded))}; write a list such as ["d1", "d2"]')
            found.excluded[key] = list(map(str, excluded))
    for split, tables in qrels.items():
        judged = found.qrels.setdefault(split, {})
        for table in tables:
            reader.judge(judged, table)
    return reader.done()


def read_pairs(table: object, split: str, columns: Mapping[str, str] | None = None) -> Imported:
    """Read one table of query texts, document texts and labels, all 1 where there are none.

    Ids are those of its columns ``query_id`` and ``document_id``. Where there are none, equal texts are one query or
    document, and their ids are numbers in the order of the rows.
    """
    reader, numbers = _CollectionReader(columns or {}), dict[object, str]()
    judged = reader.found.qrels.setdefault(split, {})
    for row in reader.rows(table, "table"):
        keys = []
        for noun, value in (
            ("query", row.text("query")),
            ("document", Document(row.text("title", ""), row.text("document"))),
        ):
            if f"{noun}_id" in row.cells:
                key = row.identifier(f"{noun}_id")
            else:
                key = numbers.setdefault((noun, value), f"{noun[0]}{len(reader.kept[noun]) + 1}")
            reader.keep(noun, key, value, row)
            keys.append(key)
        row.judge(judged, *keys)
    reader.found.repeated.clear()  # a query has a row for each of its documents
    return reader.done()


def read_folder(folder: Path, columns: Mapping[str, str] | None = None) -> Imported:
    """Read a folder: the layout itself, or a data set of Hugging Face; see ``_find_parts``."""
    parts = _find_parts(folder)
    (corpus,), (queries,) = parts["corpus"].values(), parts["queries"].values()
    return read_parts(corpus, queries, parts["qrels"], columns)


def split_name(path: Path) -> str:
    """Return what a file of judgments is named by: ``dev`` of ``qrels-dev.tsv``, and ``test`` of ``qrels``."""
    match = _FILE.fullmatch(path.name)
    words = re.split(r"[-_.]", match[1] if match else path.name)
    said = {*_QRELS, "txt", "trec", "gz"}
    return "-".join(word for word in words if word.lower() not in said) or "test"


def write_collection(folder: Path, found: Imported, card: FolderDescription, *, overwrite: bool = False) -> None:
    """Write the folder layout, whole or not at all.

    Raises:
        UsageError: the folder holds something (``overwrite`` replaces a collection, and nothing else), or a split's
            name cannot be that of a file.
    """
    for split in found.qrels:
        if problem := name_problem(split, is_folder=True):
            raise UsageError(f"split {shortened(split)!r} {problem}; choose another name")
    there = {path.name.removesuffix(".gz") for path in folder.iterdir()} if folder.is_dir() else set()
    if other := sorted(there - {"corpus.jsonl", "queries.jsonl", "qrels", COLLECTION_FILE}):
        raise UsageError(f"{folder}: holds {first_few(other)}, which is no part of a collection; choose another folder")
    if there and not overwrite:
        raise UsageError(f"{folder}: holds a collection; choose another folder, or replace it by --overwrite")
    with atomic_dir(folder.absolute()) as temporary:
        write_parts(temporary, found.corpus, found.queries, found.qrels, excluded=found.excluded)
        write_json(temporary / COLLECTION_FILE, card.model_dump(exclude_none=True))


def _find_parts(folder: Path) -> dict[str, dict[str, list[object]]]:
    """Return the tables of a folder by part, and by split or the folder that they are in.

    ``corpus`` and ``queries`` are the names of files or of their folders, as configurations have them; the files of
    ``qrels``, ``default`` or ``data`` are named by their splits. What ``save_to_disk`` wrote is read too.

    Raises:
        DataError: a part is missing, or there are several of one kind, as of several languages.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give files by --corpus, --queries and --qrels, or --table")
    parts: dict[str, dict[str, list[object]]] = {"corpus": {}, "queries": {}, "qrels": {}}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder)
        match = _FILE.fullmatch(place.name)
        if match is None or place.name in _CARDS or any(name.startswith(".") for name in place.parts):
            continue
        stem = place.parent.name if match[1] == _SAVED else match[1]
        words = [set(re.split(r"[^a-z0-9]+", name.lower())) for name in (*place.parts[:-1], stem)]
        spoken = set[str]().union(*words)
        part = next((part for part, names in _PARTS.items() if spoken & names and "qrels" not in spoken), "qrels")
        folders = set[str]().union(*words[:-1])  # of which a data set has others too, such as ``top_ranked/test``
        if part == "qrels" and not spoken & _QRELS and not (folders or spoken) & _JUDGED:
            continue
        kind = split_name(place.with_name(stem)) if part == "qrels" else place.parent.as_posix()
        parts[part].setdefault(kind, []).append(path)
    for part, tables in parts.items():
        if not tables or (len(tables) > 1 and part != "qrels"):
            state = f"{part} in {first_few(list(tables))}" if tables else f"no file or folder {part}"
            raise DataError(f"{folder}: {state}; name the files by --corpus, --queries and --qrels")
    return parts


class _Row(NamedTuple):
    """The cells of one row by field, and its place."""

    cells: dict[str, Any]
    number: int
    where: Callable[[int], str]

    def refusal(self, problem: str) -> DataError:
        return DataError(f"{self.where(self.number)}: {problem}")

    def text(self, field: str, default: str | None = None) -> str:
        value = self.cells.get(field)
        if isinstance(value, str):
            return value
        if not _is_missing(value):
            raise self.refusal(f"{field} is {shortened(repr(value))}, no text; write it as text")
        if default is None:
            raise self.refusal(f"there is no {field}; write one, or leave the row out")
        return default

    def identifier(self, field: str) -> str:
        value: Any = self.cells.get(field)
        if _is_missing(value):
            raise self.refusal(f"there is no {field}; write one, or leave the row out")
        if not isinstance(value, str) and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise self.refusal(f"{field} is {shortened(repr(value))}; write a text or a whole number")
        key = value.strip() if isinstance(value, str) else str(int(value))
        if problem := id_problem(key):
            raise self.refusal(f"{field} {shortened(key)!r} {problem}; write another")
        return key

    def judge(self, judged: Qrels, query: str, document: str) -> None:
        """Add the row's judgment; a second grade of a pair is refused."""
        value, place = self.cells.get("grade", 1), f"{self.where(self.number)}: grade"
        value = {"true": 1, "false": 0}.get(value.lower(), value) if isinstance(value, str) else value
        read: Callable[..., int] = checked_text if isinstance(value, str) else checked_number
        grade = read(value, read_grade, place)
        if grade != int(grade):
            raise DataError(f"{place} {value!r} is not a whole number; collections hold whole grades")
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise self.refusal(f"query {query!r} and document {document!r} have another grade in a row above; keep one")


class _CollectionReader:
    """Reads the tables of one collection."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        known = {name for part, fields in FIELDS.items() for field in fields for name in (field, f"{part}.{field}")}
        if unknown := sorted(columns.keys() - known):
            raise UsageError(f"columns: there is no field {unknown[0]!r}; name one of {', '.join(sorted(known))}")
        self.found, self._columns, self._unused = Imported(), columns, set(columns)
        self.kept: dict[str, dict[str, Any]] = {"document": self.found.corpus, "query": self.found.queries}

    def rows(self, content: object, part: str) -> Iterator[_Row]:
        """Yield the rows of a table of a part; a column that is needed and not found is refused."""
        fields, own = FIELDS[part], self._own(part)
        table = with_names(unwrapped(part_table(content, part)), own.values())
        # A name of one's own counts as it is written, a known one in any case.
        places = pick(table.names, fields)
        for key, name in own.items():
            if name in table.names:
                places[key] = table.names.index(name)
                self._unused.discard(f"{part}.{key}" if f"{part}.{key}" in self._columns else key)
            elif key not in {"id", "text"} or f"{part}.{key}" in self._columns:  # which other parts have too
                raise UsageError(f"{table.name}: no column {name!r} for {key}; it has {first_few(table.names, 9)}")
        for needed in list(fields)[:2]:
            if needed not in places:
                has = f"it has {first_few(table.names, 9)}" if table.names else "its first line names none"
                raise DataError(
                    f"{table.name}: no column is the {needed} of the {part}, such as {', '.join(fields[needed][:6])}; "
                    f"{has}; name yours by --columns {part}.{needed}=COLUMN, or its place from 1"
                )
        for number, cells in enumerate(table.rows):
            if number == 0 and part in {"qrels", "table"} and "grade" not in places:
                _refuse_unread_grade(table, part, cells, places)
            yield _Row({field: cells[place] for field, place in places.items()}, number, table.where)

    def _own(self, part: str) -> dict[str, str]:
        """Return the columns that were named for the fields of a part."""
        named = {field: self._columns.get(f"{part}.{field}", self._columns.get(field)) for field in FIELDS[part]}
        return {field: name for field, name in named.items() if name}

    def keep(self, noun: str, key: str, value: str | Document, row: _Row) -> None:
        """Keep a document or query; a row that repeats another is counted, and one that contradicts it refused."""
        kept = self.kept[noun]
        if key not in kept:
            kept[key] = value
        elif kept[key] != value:
            raise row.refusal(f"{noun} {key!r} has another text in a row above; give each an id of its own")
        else:
            self.found.repeated.setdefault(f"duplicate {'queries' if noun == 'query' else 'documents'}", []).append(key)

    def judge(self, judged: Qrels, content: object) -> None:
        """Add the judgments of a table, or of what has no names of columns: TREC's files, and dictionaries by query."""
        own = self._own("qrels")
        source = part_table(content, "qrels") if own else opened(of_stream(content), "the qrels", LAYOUT)
        if isinstance(source, Nested) or not (own or source.names):
            unnamed = load_qrels(source)
            if unknown := next((key for key in unnamed if key not in self.found.queries), None):
                raise DataError(f"{source.name}: {_unknown(unknown)}")
            for query, grades in unnamed.items():
                for document, grade in grades.items():
                    _Row({"grade": grade}, 0, lambda _: source.name).judge(judged, query, document)
            return
        if not own and {"rank", "score"} <= set(map(plain_name, source.names)):
            raise DataError(f"{source.name}: looks like a run, with ranks and scores; give judgments")
        table = source if isinstance(source, InputTable) else rows_of(source)
        for row in self.rows(table, "qrels"):
            query, document = row.identifier("query"), row.identifier("document")
            if query not in self.found.queries:
                raise row.refusal(_unknown(query))
            row.judge(judged, query, document)

    def done(self) -> Imported:
        """Return what was read, where it can be a collection and every column that was named has been found."""
        if self._unused:
            key = min(self._unused)
            raise UsageError(f"no table has a column {self._columns[key]!r} for {key}; correct --columns")
        for split, qrels in self.found.qrels.items():
            judged = {key: None for grades in qrels.values() for key in grades}
            if judged and self.found.corpus.keys().isdisjoint(judged):
                ids = f"{first_few(list(judged))}, and the corpus has {first_few(list(self.found.corpus)) or 'none'}"
                raise DataError(f"split {split!r}: no judged document is in the corpus: {ids}; give its judgments")
        return self.found


def _is_missing(value: object) -> bool:
    """Return whether a cell holds nothing, as JSON, numpy and pandas say it."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def _unknown(query: str) -> str:
    return f"query {query!r} is not among the queries; add its text, or remove its judgments"


def _refuse_unread_grade(table: InputTable, part: str, first: Sequence[Any], places: Mapping[str, int]) -> None:
    """Refuse a table without grades where a column could hold them, by its name or as a number or truth value."""
    for place, (name, cell) in enumerate(zip(table.names, first, strict=True)):
        plain, text = plain_name(name), str(cell).lower()
        if place in places.values() or plain in {"id", "_id", "iteration", "rank"} or plain.endswith("_id"):
            continue
        if _MAYBE_GRADE.search(plain) or is_number(text) or text in {"true", "false"}:
            remedy = f"name it by --columns {part}.grade={name}, or leave it out: without grades every row is relevant"
            raise DataError(f"{table.name}: is {name!r} the grade? {remedy}")
