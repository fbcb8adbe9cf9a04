"""Tables of any make, with a header or none: CSV, TSV, JSON, JSONL and parquet files, frames, lists of records.

Frames of other libraries are known by the names of their types, so that none is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.io import named_errors
from unimoe.core.limits import shortened, visible
from unimoe.core.text import BATCH, SAMPLE, Batch, TextFile, is_number, split_fields
from unimoe.core.trec import check_unpacked

Row: TypeAlias = tuple[Any, ...]

_BATCH = 128  # rows taken at a time: a file of some kilobytes may say a text of megabytes once, and repeat it in all


def frame_rows(content: Any, what: str) -> tuple[tuple[str, ...] | None, Iterator[Any]]:
    """Return the names of columns and the rows of an object of Python; without names, records that may be dictionaries.

    A UsageError that begins with ``what`` where it is neither a frame of pandas or polars, a table of pyarrow, a
    ``datasets.Dataset``, nor an iterable of records.
    """
    library, kind = type(content).__module__.partition(".")[0], type(content).__name__
    if library == "pandas" and kind == "DataFrame":
        content = content.reset_index() if any(content.index.names) else content
        return tuple(map(str, content.columns)), content.itertuples(index=False, name=None)
    if library == "polars" and kind in {"DataFrame", "LazyFrame"}:
        content = content.collect() if kind == "LazyFrame" else content
        return tuple(content.columns), content.iter_rows()
    if library == "pyarrow" and kind in {"Table", "RecordBatch"}:
        return tuple(content.schema.names), _arrow_rows([content])
    if library == "datasets" and kind == "Dataset":
        return tuple(content.column_names), _arrow_rows(content.with_format("arrow").iter(_BATCH))
    if library == "datasets":
        raise UsageError(f"{what}: a {kind}, which is no single table; give one split, such as dataset['test']")
    if not isinstance(content, Iterable) or isinstance(content, str | bytes | Mapping):
        raise UsageError(f"{what}: {kind} is no table; give a path, a frame, a list of dictionaries or a dictionary")
    records = list(content)
    if records and all(hasattr(record, "_fields") for record in records):  # named tuples, as of ir_datasets
        return records[0]._fields, iter(records)
    return None, iter(records)


def is_parquet(path: Path | str) -> bool:
    """Return whether a file begins as parquet does; a pipe, which can be read once, is not asked."""
    path = Path(path)
    with named_errors(path):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"


def parquet_rows(path: Path | str) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the names of columns and the rows of a parquet file; a UsageError where pyarrow is not installed."""
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        needs = f"reading parquet needs pyarrow, which is not installed: {install_extra('frames')}"
        raise UsageError(f"{path}: {needs}") from None
    try:
        file = parquet.ParquetFile(path)
        unpacked = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    except (ValueError, OSError) as error:  # pyarrow's are kinds of them
        raise DataError(f"{path}: not a complete parquet file ({shortened(str(error))}); fetch it again") from None
    if unpacked > 1 << 20:  # small ones are mostly names of columns
        check_unpacked(Path(path), unpacked)
    return tuple(file.schema_arrow.names), _arrow_rows(file.iter_batches(_BATCH))


def _arrow_rows(tables: Iterable[Any]) -> Iterator[Row]:
    for table in tables:
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


QUERY = ("query_id", "qid", "q_id", "topic_id", "topic", "query")
DOCUMENT = ("document_id", "docno", "doc_id", "docid", "corpus_id", "pid", "passage_id", "did")
GRADE = ("relevance", "rel", "label", "grade", "relevance_label")
KNOWN = frozenset(
    {*QUERY, *DOCUMENT, *GRADE, "score", "rank", "iteration"}
    | {"id", "_id", "text", "title", "question", "passage", "document", "body", "contents", "positive", "answer"}
)
"""Names of columns that make a first line a header, as ``plain_name`` writes them."""


@dataclass(frozen=True)
class InputTable:
    """The columns of a table by name, and its rows, which can be taken once.

    Attributes:
        name: what messages call it: a file's path.
        names: of the columns, as they are written; empty where there is no header.
        rows: tuples of one length. Cells of text files are texts, those of others what they hold, or None.
        where: from the number of a row that was taken, from 0, to its place, such as ``run.csv:12``.
    """

    name: str
    names: tuple[str, ...]
    rows: Iterator[Row]
    where: Callable[[int], str]


@dataclass(frozen=True)
class Columns:
    """What a run or judgments are read from: the names of columns, if any, the first rows, and all rows in batches."""

    name: str
    names: Sequence[str]
    sample: Sequence[Sequence[Any]]
    batches: Iterator[Batch]
    first: str  # where the first row is


@dataclass(frozen=True)
class Nested:
    """What dictionaries and objects of JSON hold by query."""

    name: str
    value: Mapping[Any, Any]


def read_table(content: object, what: str) -> InputTable:
    """Read a table from a file, told by its content, or from a frame, a data set or a list of records.

    Args:
        content: a path, ``.gz`` is unpacked; a frame of pandas or polars, a table of pyarrow, a ``datasets.Dataset``;
            dictionaries or named tuples.
        what: how messages call what is no file, such as ``the corpus``.

    Raises:
        DataError: the file cannot be read, or a row has another number of cells than the header.
        UsageError: this is no table, or reading it needs pyarrow, which is not installed.
    """
    if isinstance(content, str | Path) and not is_parquet(content):
        file = TextFile(content)
        return records_table(file.values(), file.name) if file.is_json else delimited_table(file)
    name = str(content) if isinstance(content, str | Path) else what
    names, rows = parquet_rows(content) if isinstance(content, str | Path) else frame_rows(content, what)
    if names is None:
        return records_table(((f"{what}, record {i}", one) for i, one in enumerate(rows, start=1)), what)
    return _without_index(InputTable(name, names, rows, lambda row: f"{name}, row {row + 1}"))


def opened(content: object, name: str, layout: str) -> Columns | Nested:
    """Return what a path or an object holds, told by its content; ``layout`` says what a line of fields should be."""
    library = type(content).__module__.partition(".")[0]
    if library == "ranx":
        content = content.to_dict()  # type: ignore[attr-defined]
    if isinstance(content, Mapping) and library != "datasets":
        return Nested(name, content)
    if not isinstance(content, str | Path) or is_parquet(content):
        return _columns(read_table(content, name))
    file = TextFile(content)
    if file.is_json:
        values = file.values()
        first = list(islice(values, 2))
        value = first[0][1] if len(first) == 1 else None
        if isinstance(value, Mapping) and all(isinstance(inner, Mapping | list) for inner in value.values()):
            return Nested(file.name, value)
        return _columns(records_table(chain(first, values), file.name))
    by_commas = [[cell.strip() for cell in line.split(",")] for line in file.sample]
    heads = ([line.split(delimiter) for line in file.sample[:2]] for delimiter in "\t,;")
    if any(cells and len(cells[0]) > 1 and is_header(*cells) for cells in heads) or (
        by_commas and len(by_commas[0]) > 2 and all(len(split_fields(cell)) == 1 for row in by_commas for cell in row)
    ):
        return _columns(delimited_table(file))
    return _lines(file, layout)


def _lines(file: TextFile, layout: str) -> Columns:
    """Return the columns of lines with fields separated by spaces and tabs."""
    rows = list(map(split_fields, file.sample))
    width = len(rows[0]) if rows else 0
    names = rows[0] if rows and is_header(*rows[:2]) else []
    tabs = file.sample[0].count("\t") if rows else 0
    if tabs > 1 and width > tabs + 1 and not names:  # ids hold spaces
        if width == tabs + 2 and rows[0][1] in {"0", "Q0"}:
            raise DataError(f"{file.place}: separated by tabs and by spaces; use one of them in all lines")
        width, rows = tabs + 1, [line.split("\t") for line in file.sample]
    sample = [row for row in rows if len(row) == width][bool(names) :]
    batches = file.fields(width, layout, header=bool(names)) if rows else iter(())
    return Columns(file.name, names, sample, batches, file.place)


def _columns(table: InputTable) -> Columns:
    """Return a table's columns in batches."""
    first = list(islice(table.rows, SAMPLE))

    def batches() -> Iterator[Batch]:
        rows, start = chain(first, table.rows), 0
        while batch := list(islice(rows, BATCH)):
            yield Batch(list(zip(*batch, strict=True)), table.where, start)
            start += len(batch)

    return Columns(table.name, table.names, first, batches(), table.where(0) if first else table.name)


def places_of(source: Columns, wanted: Mapping[str, Sequence[str]], needed: Iterable[str]) -> dict[str, int]:
    """Return the places of fields by the names of columns; a DataError where no column is named as a needed field."""
    places = pick(source.names, wanted)
    for field in needed:
        if field not in places:
            there = first_few([visible(str(name)) for name in source.names], 8)
            known = " or ".join(wanted[field])
            raise DataError(f"{source.name}: which column is the {field}? there are {there}; name it {known}")
    return places


def pick(names: Sequence[str], wanted: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the place of each field's column: of the first of the field's names that is among the columns'.

    Case does not count, and ``query-id``, ``query_id`` and ``Query ID`` are one name. A field without column is absent.
    """
    places = {plain_name(name): place for place, name in reversed(list(enumerate(names)))}
    found = ((key, next((places[name] for name in known if name in places), None)) for key, known in wanted.items())
    return {key: place for key, place in found if place is not None}


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with ``_`` between words."""
    return re.sub(r"[-\s]+", "_", str(name).strip().lower())


def is_header(first: Sequence[str], second: Sequence[str] = ()) -> bool:
    """Return whether a first row names columns: no cell is a number, and one is a known name or has a number below."""
    if any(map(is_number, first)):
        return False
    return any(plain_name(cell) in KNOWN for cell in first) or any(map(is_number, second))


def delimited_table(file: TextFile) -> InputTable:
    """Read rows with cells separated by tabs, else by commas or Excel's semicolons, and quoted where need be."""
    first = (file.sample or [""])[0]
    delimiter = "\t" if "\t" in first else ";" if ";" in first and "," not in first else ","
    numbered, lines = file.rows(delimiter), list[int]()
    head = list(islice(numbered, 2))
    names = head[0][1] if head and is_header(*(row for _, row in head)) else ()

    def rows() -> Iterator[Row]:
        width = len(names)
        for number, row in chain(head[bool(names) :], numbered):
            width = width or len(row)
            if len(row) != width:
                raise DataError(f"{file.name}:{number}: a row of {len(row)} cells, where others have {width}")
            lines.append(number)
            yield row

    return _without_index(InputTable(file.name, names, rows(), lambda row: f"{file.name}:{lines[row]}"))


def records_table(records: Iterable[tuple[str, object]], name: str) -> InputTable:
    """Return the table of objects, each with its place; the columns are their keys, and a cell that lacks is None."""
    records, places = iter(records), list[str]()
    first = list(islice(records, BATCH))
    names = tuple(dict.fromkeys(key for _, record in first if isinstance(record, Mapping) for key in record))

    def rows() -> Iterator[Row]:
        for place, record in chain(first, records):
            if not isinstance(record, Mapping):
                raise DataError(f"{place}: {shortened(repr(record))} is no object with names and values; write one")
            if late := [key for key in record if key not in names and plain_name(key) in KNOWN]:
                raise DataError(f"{place}: {late[0]!r} is absent from the first {BATCH:,} records; write it in all")
            places.append(place)
            yield tuple(map(record.get, names))

    return _without_index(InputTable(name, names, rows(), places.__getitem__))


def _without_index(table: InputTable) -> InputTable:
    """Leave out the first column where it is the index that pandas writes without a name."""
    if not table.names or table.names[0].strip().lower() not in {"", "unnamed: 0"}:
        return table
    return InputTable(table.name, table.names[1:], (row[1:] for row in table.rows), table.where)
