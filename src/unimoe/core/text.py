"""Text files that say by their first lines what they hold: values of JSON, lines of fields, or rows of cells."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from unimoe.core.errors import DataError
from unimoe.core.limits import are_short, checked_ids, checked_numbers
from unimoe.core.trec import block_lines, text_blocks

BATCH = 10_000  # rows taken at a time
SAMPLE = 100  # lines that tell what a file holds

_LOW = bytes({*range(32), 127} - {9, 10})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)


class Batch(NamedTuple):
    """Columns of some rows of a table."""

    columns: Sequence[Sequence[Any]]
    where: Callable[[int], str]  # from the number of a row of the table to its place, such as ``run.trec:12``
    start: int  # the number of the first of these rows
    is_text: bool = False  # whether cells are texts that can be ids as they are
    is_plain: bool = False  # whether they are in ASCII, without underscores

    def place(self, row: int) -> str:
        """Return where a row is, by its number among these."""
        return self.where(self.start + row)

    def ids(self, column: int, what: str) -> Sequence[str]:
        """Return ids as texts; a DataError for the first that is no text or whole number, or cannot be written."""
        cells = self.columns[column]
        is_known = self.is_text and are_short(cells)
        return cells if is_known else checked_ids(cells, lambda row: f"{self.place(row)}: {what}")

    def numbers(self, column: int, what: str, read: Callable[[str], float], most: float) -> list[float]:
        """Return the numbers of texts, or of any kind; a DataError for the first that ``read`` refuses."""
        cells, plain = self.columns[column], self.is_plain
        return checked_numbers(cells, read, most, lambda row: f"{self.place(row)}: {what}", plain=plain)


class TextFile:
    """A text file with known first lines; the rest is read once, so that a pipe will do."""

    def __init__(self, path: Path | str) -> None:
        blocks, first = text_blocks(path), ""
        for block in blocks:
            first += block
            if block.strip():
                break
        self.name, self._blocks = str(path), chain([first], blocks)
        lines = ((number, line.rstrip("\r")) for number, line in enumerate(first.split("\n"), start=1) if line.strip())
        numbered = list(islice(lines, SAMPLE))
        self.sample = [line for _, line in numbered]  # of lines that are not blank
        self.place = f"{path}:{numbered[0][0] if numbered else 1}"

    @property
    def is_json(self) -> bool:
        """Whether it begins as an object or a list of JSON does, and its first line ends so too."""
        line = self.sample[0].strip() if self.sample else ""
        return bool(re.match(r'\{\s*("|\}|$)|\[\s*([{\["\]]|$)', line)) and line[-1] in '{[,:]}"'

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield place and value of each line of JSONL, of each member of a list, or of the one value of the file."""
        try:
            value = json.loads(self.sample[0])
        except (ValueError, RecursionError):
            value = self._parsed("".join(self._blocks), self.name)
        else:
            lines = self.lines()
            next(lines)
            if not isinstance(value, list):
                yield f"{self.name}:1", value
            for number, line in lines:
                yield f"{self.name}:{number}", self._parsed(line, f"{self.name}:{number}")
            if not isinstance(value, list):
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
        return block_lines(self._blocks)

    def fields(self, width: int, layout: str, *, header: bool = False) -> Iterator[Batch]:
        """Yield the fields of lines, which spaces and tabs separate; where tabs alone do, ids may hold spaces.

        Whole blocks are split at once. Where that will not do, because of a header, blank lines, ids with spaces or
        what is wrong, a block is split line by line.

        Raises:
            DataError: a line has another number of fields than a line of this ``layout``, or a control character.
        """
        start = 1
        for block in self._blocks:
            text = (block.replace("\r\n", "\n") if "\r" in block else block).removesuffix("\n")
            marked = text.replace("\n", " \0 ") + " \0"  # NUL marks the ends of lines: elsewhere it is refused
            # ``split`` takes no-break spaces and their kind as separators too, of which ASCII has none.
            flat = marked.split() if text.isascii() else split_fields(marked)
            lines, marks = text.count("\n") + 1, flat[width :: width + 1]
            if not header and len(flat) == lines * (width + 1) and marks.count("\0") == lines and _is_clean(text):
                columns = [flat[place :: width + 1] for place in range(width)]
                yield Batch(columns, self._line, start, is_text=True, is_plain=text.isascii() and "_" not in text)
            else:
                rows = dict(self._rows(text, start, width, layout))
                if header and rows:
                    del rows[next(iter(rows))]
                    header = False
                if rows:
                    places = list(map(self._line, rows))
                    yield Batch(list(zip(*rows.values(), strict=True)), places.__getitem__, 0, is_text=True)
            start += lines

    def _line(self, number: int) -> str:
        return f"{self.name}:{number}"

    def _rows(self, text: str, start: int, width: int, layout: str) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(text.split("\n"), start=start):
            if control := _CONTROL.search(line):
                raise DataError(f"{self.name}:{number}: holds the control character {control[0]!a}; remove it")
            if line.strip():
                cells = split_fields(line)
                if len(cells) != width and line.count("\t") == width - 1:
                    cells = list(filter(None, (cell.strip(" ") for cell in line.split("\t"))))
                if len(cells) != width:
                    said = f"{len(cells)} fields, where the first line has {width}"
                    raise DataError(f"{self.name}:{number}: {said}; {layout}")
                yield number, cells

    def rows(self, delimiter: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield number and cells of each row of a file with cells separated by commas, semicolons or tabs.

        Cells are quoted as in CSV. Between tabs only those in quotes lose them: texts begin with quotes that end later.
        """
        if delimiter == "\t":
            for number, line in self.lines():
                cells = line.split("\t")
                yield number, tuple(map(_unquoted, cells) if '"' in line else cells)
            return
        lines = (f"{line}\n" for block in self._blocks for line in block.removesuffix("\n").split("\n"))
        reader = csv.reader(lines, delimiter=delimiter)
        batch = [(0, [""])]
        while batch:
            limit = csv.field_size_limit(sys.maxsize)  # texts may be longer than the host's limit
            try:
                batch = [(reader.line_num, row) for row in islice(reader, BATCH)]
            except csv.Error as error:
                raise DataError(f"{self.name}:{reader.line_num}: not a row of CSV ({error}); write it again") from None
            finally:
                csv.field_size_limit(limit)
            yield from ((number, tuple(row)) for number, row in batch if row)


def split_fields(line: str) -> list[str]:
    """Return what spaces and tabs separate, and nothing else: a no-break space is part of an id."""
    return list(filter(None, line.replace("\t", " ").split(" ")))


def _is_clean(text: str) -> bool:
    """Return whether there is no control character but tabs and ends of lines."""
    return len(text.encode().translate(None, _LOW)) == len(text) if text.isascii() else not _CONTROL.search(text)


def is_number(cell: str) -> bool:
    """Return whether a cell of a text file holds a number."""
    return bool(_NUMBER.fullmatch(cell.strip()))


def _unquoted(cell: str) -> str:
    inner = cell[1:-1].replace('""', "")
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner else cell
