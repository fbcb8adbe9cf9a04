"""The sidecar of a result: each query's text and the ranks of its relevant documents, for a drill-down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from unimoe.core.errors import DataError
from unimoe.core.io import Strict, read_bytes, read_json, write_text

_HEAD, _FOOT = '{"schema_version": 1, "queries": {', "}}"


class QueryDetail(Strict):
    """One query of a drill-down: its text and the ranks of its relevant documents."""

    text: str
    relevant: dict[str, int]
    ranks: dict[str, int | None] = Field(description="rank of each relevant document, null where it was not ranked")


class DrillDown(Strict):
    """The sidecar of a result (``{dataset}.queries.json``), so that analysis needs no collection."""

    schema_version: Literal[1] = 1
    queries: dict[str, QueryDetail]


def drilldown_path(path: Path) -> Path:
    """Return the path of the drill-down sidecar of a result file."""
    return path.with_suffix(".queries.json")


def write_drilldown(path: Path, detail: DrillDown) -> None:
    """Write the sidecar of the result file ``path``, a line for each query, so that each can be read alone."""
    lines = ",\n".join(f"{_text(query_id)}: {_text(q.model_dump())}" for query_id, q in detail.queries.items())
    write_text(drilldown_path(path), f"{_HEAD}\n{lines}\n{_FOOT}\n")


def read_drilldown(path: Path) -> DrillDown:
    """Read the drill-down sidecar of the result file ``path``."""
    return read_json(drilldown_path(path), DrillDown)


def read_query_details(path: Path, query_ids: Iterable[str]) -> dict[str, QueryDetail]:
    """Read some queries of the drill-down sidecar of the result file ``path``; the other lines are not parsed.

    Raises:
        DataError: the sidecar is missing, broken or of another schema version, or lacks one of the queries.
    """
    sidecar = drilldown_path(path)
    lines = read_bytes(sidecar).split(b"\n")
    try:
        if lines[0] == _HEAD.encode() and lines[-2:] == [_FOOT.encode(), b""]:
            by_id = {line[: line.find(b'": {') + 1]: line for line in lines}
            return {query_id: QueryDetail.model_validate_json(_detail_of(query_id, by_id)) for query_id in query_ids}
    except (KeyError, ValidationError):
        pass
    queries = read_drilldown(path).queries  # another layout, or broken: then this raises
    lacking = [query_id for query_id in query_ids if query_id not in queries]
    if lacking:
        raise DataError(
            f"{drilldown_path(path)}: lacks {len(lacking)} queries that its result holds, such as {lacking[0]!r}; "
            "delete the result and evaluate again"
        )
    return {query_id: queries[query_id] for query_id in query_ids}


def _detail_of(query_id: str, by_id: Mapping[bytes, bytes]) -> bytes:
    name = _text(query_id).encode()
    return by_id[name][len(name) + 2 :].removesuffix(b",")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
