"""Tables of any make: CSV, TSV, JSON, JSONL, parquet and Arrow files, frames and lists of records.

A file is told by its content, whatever it is called. A table has a header or, as MS MARCO's files, none.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import named_errors
from unimoe.core.limits import shortened
from unimoe.core.trec import text_blocks

Row: TypeAlias = tuple[Any, ...]

BATCH = 10_000  # rows taken at a time

QUERY = ("query_id", "qid", "q_id", "topic_id", "topic", "query")
DOCUMENT = ("document_id", "docno", "doc_id", "docid", "corpus_id", "pid", "passage_id", "did")
KNOWN = frozenset(
    {*QUERY, *DOCUMENT, "score", "rank", "relevance", "rel", "label", "grade", "iteration", "iter", "q0", "run", "tag"}
    | {"id", "_id", "text", "title", "question", "passage", "document", "body", "contents", "positive", "answer"}
)
"""Names of columns that make a first line a header, as ``plain_name`` writes them."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)
_INDEX = ("", "unnamed: 0", "__index_level_0__")  # what pandas calls the index that it writes


@dataclass(frozen=True)
class Table:
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


@dataclass
class TextFile:
    """A text file whose first lines are known; the rest is read once, so that a pipe will do."""

    name: str
    blocks: Iterator[str] = field(repr=False)  # of whole lines
    first: str = ""  # of these blocks

    def __post_init__(self) -> None:
        self.first = next((block for block in self.blocks if block.strip()), "")
        self.blocks = chain([self.first], self.blocks)

    @property
    def first_lines(self) -> list[str]:
        """The first lines that are not blank, at most a hundred."""
        lines = self.first.split("\n")
        return [line.rstrip("\r") for line in islice(filter(str.strip, lines), 100)]

    @property
    def is_json(self) -> bool:
        """Whether it begins as an object or a list of JSON does, and its first line ends so too."""
        line = next(iter(self.first_lines), "").strip()
        return bool(re.match(r'\{\s*("|\}|$)|\[\s*([{\["\]]|$)', line)) and line[-1] in '{[,:]}"'

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield place and value of each line of JSONL, of each member of a list, or of the one value of the file."""
        try:
            json.loads(self.first_lines[0])
        except (ValueError, RecursionError):
            value = self._parsed("".join(self.blocks), self.name)
        else:
            found = ((f"{self.name}:{number}", line) for number, line in self.lines())
            place, line = next(found)
            value = self._parsed(line, place)
            if not isinstance(value, list):
                yield place, value
                yield from ((place, self._parsed(line, place)) for place, line in found)
                return
        if isinstance(value, list):
            yield from ((f"{self.name}, record {number}", record) for number, record in enumerate(value, start=1))
        else:
            yield self.name, value

    def _parsed(self, text: str, place: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON ({error}); fix it, or write it again") from None

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of each line that is not blank."""
        number = 0
        for block in self.blocks:
            for line in block.removesuffix("\n").split("\n"):
                number += 1
                if line.strip():
                    yield number, line.rstrip("\r")


def read_table(content: object, what: str) -> Table:
    """Read a table from a file, told by its content, or from a frame, a data set or a list of records.

    Args:
        content: a path, ``.gz`` is unpacked; a frame of pandas or polars, a table of pyarrow, a ``datasets.Dataset``;
            dictionaries or named tuples.
        what: how messages call what is no file, such as ``the corpus``.

    Raises:
        DataError: the file cannot be read, or a row has another number of cells than the header.
        UsageError: this is no table, or reading it needs pyarrow, which is not installed.
    """
    if not isinstance(content, str | Path):
        return _frame(content, what)
    if (kind := _binary_kind(Path(content))) is not None:
        return _arrow_table(Path(content), kind)
    file = TextFile(str(content), text_blocks(content))
    return records_table(file.values(), file.name) if file.is_json else delimited_table(file)


def is_binary(path: Path) -> bool:
    """Return whether a file holds parquet or Arrow's format."""
    return _binary_kind(path) is not None


def pick(names: Sequence[str], wanted: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the place of each field's column: of the first of the field's names that is among the columns'.

    Case does not count, and ``query-id``, ``query_id`` and ``Query ID`` are one name. A field without column is absent.
    """
    places = {plain_name(name): place for place, name in reversed(list(enumerate(names)))}
    found = ((key, next((places[name] for name in known if name in places), None)) for key, known in wanted.items())
    return {key: place for key, place in found if place is not None}


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with ``_`` between words."""
    return re.sub(r"[-\s]+", "_", name.strip().lower())


def is_number(cell: str) -> bool:
    """Return whether a cell of a text file holds a number."""
    return bool(_NUMBER.fullmatch(cell.strip()))


def delimited_table(file: TextFile) -> Table:
    """Read the rows of a text file whose cells are separated by tabs or else by commas, and quoted where need be."""
    delimiter = "\t" if "\t" in next(iter(file.first_lines), "") else ","
    places = array("q")  # lines of the rows that were taken
    rows = _numbered(_tab_rows(file) if delimiter == "\t" else _comma_rows(file), places)
    head = list(islice(rows, 2))
    names = head[0] if head and is_header(*head) else ()
    skipped = 1 if names else 0

    def where(number: int) -> str:
        return f"{file.name}:{places[number + skipped]}"

    body = _of_one_width(chain(head[skipped:], rows), len(names), where)
    return _without_index(Table(file.name, names, body, where))


def is_header(first: Sequence[str], second: Sequence[str] = ()) -> bool:
    """Return whether a first row names columns: no cell is a number, and one is a known name or has a number below."""
    if any(map(is_number, first)):
        return False
    return any(plain_name(cell) in KNOWN for cell in first) or any(map(is_number, second))


def records_table(records: Iterable[tuple[str, object]], name: str) -> Table:
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

    return _without_index(Table(name, names, rows(), places.__getitem__))


def _frame(content: Any, what: str) -> Table:
    """Return the table of an object of Python; libraries are told by their names, and none is imported here."""
    library, kind = type(content).__module__.partition(".")[0], type(content).__name__
    rows: Iterator[Row]
    if library == "pandas" and kind == "DataFrame":
        content = content.reset_index() if any(content.index.names) else content
        names, rows = tuple(map(str, content.columns)), content.itertuples(index=False, name=None)
    elif library == "polars" and kind in {"DataFrame", "LazyFrame"}:
        content = content.collect() if kind == "LazyFrame" else content
        names, rows = tuple(content.columns), content.iter_rows()
    elif library == "pyarrow" and kind in {"Table", "RecordBatch"}:
        names, rows = tuple(content.schema.names), _arrow_rows([content])
    elif library == "datasets" and kind == "Dataset":
        names, rows = tuple(content.column_names), _arrow_rows(content.with_format("arrow").iter(BATCH))
    elif library == "datasets":
        raise UsageError(f"{what}: a {kind}, which is no single table; give one split, such as dataset['test']")
    elif isinstance(content, Iterable) and not isinstance(content, str | bytes | Mapping):
        records = list(content)
        if not records or not all(hasattr(record, "_fields") for record in records):  # as of ir_datasets
            return records_table(((f"{what}, record {i}", one) for i, one in enumerate(records, start=1)), what)
        names, rows = records[0]._fields, iter(records)
    else:
        raise UsageError(f"{what}: a {kind}, which is no table; give a path, a frame, or a list of dictionaries")
    return _without_index(Table(what, names, rows, lambda i: f"{what}, row {i + 1}"))


def _binary_kind(path: Path) -> str | None:
    if not path.is_file():  # a pipe can be read once
        return None
    with named_errors(path), path.open("rb") as file:
        start = file.read(6)
    return "parquet" if start[:4] == b"PAR1" else "file" if start == b"ARROW1" else None


def _arrow_table(path: Path, kind: str) -> Table:
    try:
        pyarrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
        ipc: Any = import_module("pyarrow.ipc")
    except ModuleNotFoundError:
        needs = "reading parquet needs pyarrow, which is not installed: pip install 'unimoe[frames]'"
        raise UsageError(f"{path}: {needs}") from None
    try:
        if kind == "parquet":
            opened = parquet.ParquetFile(path)
            names, batches = opened.schema_arrow.names, opened.iter_batches(BATCH)
        else:
            opened = ipc.open_file(path)
            names, batches = opened.schema.names, map(opened.get_batch, range(opened.num_record_batches))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a complete {kind} file ({shortened(str(error))}); fetch it again") from None
    return _without_index(Table(str(path), tuple(names), _arrow_rows(batches), lambda i: f"{path}, row {i + 1}"))


def _arrow_rows(tables: Iterable[Any]) -> Iterator[Row]:
    for table in tables:
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _tab_rows(file: TextFile) -> Iterator[tuple[int, Row]]:
    """Yield number and cells of each line; a cell in quotes loses them, and others keep theirs: text may hold some."""
    for number, line in file.lines():
        cells = line.split("\t")
        yield number, tuple(map(_unquoted, cells) if '"' in line else cells)


def _unquoted(cell: str) -> str:
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner else cell


def _comma_rows(file: TextFile) -> Iterator[tuple[int, Row]]:
    """Yield the number of the last line and the cells of each row, in which quoted cells may hold ends of lines."""
    reader = csv.reader(f"{line}\n" for block in file.blocks for line in block.removesuffix("\n").split("\n"))
    while True:
        limit = csv.field_size_limit(sys.maxsize)  # texts may be longer than it is; it is the host's, too
        try:
            rows = [(reader.line_num, tuple(row)) for row in islice(reader, BATCH)]
        except csv.Error as error:
            raise DataError(f"{file.name}:{reader.line_num}: not a row of CSV ({error}); write it again") from None
        finally:
            csv.field_size_limit(limit)
        if not rows:
            return
        yield from ((number, row) for number, row in rows if row)


def _numbered(rows: Iterable[tuple[int, Row]], places: array[int]) -> Iterator[Row]:
    for number, row in rows:
        places.append(number)
        yield row


def _of_one_width(rows: Iterable[Row], width: int, where: Callable[[int], str]) -> Iterator[Row]:
    """Yield rows, and refuse one of another width; width 0 is that of the first."""
    for number, row in enumerate(rows):
        width = width or len(row)
        if len(row) != width:
            raise DataError(f"{where(number)}: a row of {len(row)} cells, where others have {width}; write {width}")
        yield row


def _without_index(table: Table) -> Table:
    """Leave out the first column where it is the index that pandas writes without a name."""
    if not table.names or table.names[0].strip().lower() not in _INDEX:
        return table
    return Table(table.name, table.names[1:], (row[1:] for row in table.rows), table.where)
