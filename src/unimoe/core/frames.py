"""Rows of other libraries' frames, told by the names of their types, and of parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import named_errors
from unimoe.core.limits import shortened

Row: TypeAlias = tuple[Any, ...]

_BATCH = 10_000  # rows taken at a time


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
        needs = "reading parquet needs pyarrow, which is not installed: pip install 'unimoe[frames]'"
        raise UsageError(f"{path}: {needs}") from None
    try:
        file = parquet.ParquetFile(path)
    except (ValueError, OSError) as error:  # pyarrow's are kinds of them
        raise DataError(f"{path}: not a complete parquet file ({shortened(str(error))}); fetch it again") from None
    return tuple(file.schema_arrow.names), _arrow_rows(file.iter_batches(_BATCH))


def _arrow_rows(tables: Iterable[Any]) -> Iterator[Row]:
    for table in tables:
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
