"""Tables as dumps, data sets and objects of Python wrap them: hits, bulk files, streams of Arrow, mappings by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import shortened
from unimoe.core.text import Batch
from unimoe.data.collection import Document
from unimoe.formats.tables import Columns, InputTable, read_table, records_table


def part_table(content: object, part: str) -> InputTable:
    """Return a table from a file or an object, or from a mapping by id."""
    if isinstance(content, InputTable):
        return content
    if isinstance(content, Mapping) and type(content).__module__.partition(".")[0] != "datasets":
        texts = {key: one._asdict() if isinstance(one, Document) else one for key, one in content.items()}
        content = [{"id": key, **(one if isinstance(one, Mapping) else {"text": one})} for key, one in texts.items()]
    return read_table(of_stream(content), f"the {part}")


def rows_of(source: Columns) -> InputTable:
    """Return the rows of columns, which may come from a pipe and can be taken once."""
    batch, start = Batch((), str, 0), 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal batch, start
        for batch in source.batches:
            yield from zip(*batch.columns, strict=True)
            start += len(batch.columns[0])

    return InputTable(source.name, tuple(source.names), rows(), lambda number: batch.place(number - start))


def with_names(table: InputTable, own: Iterable[str]) -> InputTable:
    """Return a table with named columns: where no header was seen, those that were given, else numbers from 1."""
    if table.names:
        return table
    first, own = next(table.rows, ()), set(own)
    if own & set(first) and not any(map(str.isdecimal, own)):  # a header of names that nobody knows
        return InputTable(table.name, tuple(map(str, first)), table.rows, lambda number: table.where(number + 1))
    names = tuple(str(place) for place, _ in enumerate(first, start=1)) if own else ()
    return InputTable(table.name, names, chain([first] if first else [], table.rows), table.where)


def unwrapped(table: InputTable) -> InputTable:
    """Return a table with the fields of each document where it holds hits of Elasticsearch, or a bulk file."""
    if not {"_source", "hits", "index", "create"} & set(table.names):
        return table

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        named: Mapping[str, Any] = {}
        taken, total = 0, 0
        for number, row in enumerate(table.rows):
            record = {name: cell for name, cell in zip(table.names, row, strict=True) if cell is not None}
            hits, answer = [record], record.get("hits")
            if isinstance(answer, Mapping):  # of a search, which holds 10 hits unless more are asked for
                hits, said = answer.get("hits", []), answer.get("total", 0)
                taken, total = taken + len(hits), said.get("value", 0) if isinstance(said, Mapping) else said
            for hit in hits:
                action = hit.get("index", hit.get("create")) if isinstance(hit, Mapping) and len(hit) == 1 else None
                if isinstance(action, Mapping):  # a line of a bulk file, which names the document of the next
                    named = action
                    continue
                source = hit.get("_source", hit) if isinstance(hit, Mapping) else None
                if not isinstance(source, Mapping):
                    raise DataError(f"{table.where(number)}: {shortened(repr(hit))} is no document; write its _source")
                key, named = named.get("_id", hit.get("_id")), {}
                yield table.where(number), {**source, **({} if key is None else {"_id": key})}
        if isinstance(total, int) and taken < total:
            raise DataError(f"{table.name}: holds {taken:,} of {total:,} hits; ask for all, or write those as a list")

    return records_table(records(), table.name)


def of_stream(content: object) -> object:
    """Return the table of a stream of Arrow, as ``save_to_disk`` writes it; anything else as it is."""
    if not isinstance(content, str | Path) or (path := Path(content)).suffix != ".arrow":
        return content
    try:
        with path.open("rb") as file:
            return import_module("pyarrow").ipc.open_stream(file).read_all()
    except ModuleNotFoundError:
        raise UsageError(f"{path}: reading Arrow needs pyarrow: {install_extra('frames')}") from None
    except (OSError, ValueError) as error:  # Arrow's own is a ValueError
        raise DataError(f"{path}: no stream of Arrow ({shortened(str(error))}); write the data set again") from None
