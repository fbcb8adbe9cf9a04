"""The sidecar of a result: each query's text and the ranks of its relevant documents, for a drill-down."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from unimoe.core.errors import DataError
from unimoe.core.io import Strict, read_json


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


def read_drilldown(path: Path) -> DrillDown:
    """Read the drill-down sidecar of the result file ``path``."""
    return read_json(drilldown_path(path), DrillDown)


def read_query_details(path: Path, query_ids: Iterable[str]) -> dict[str, QueryDetail]:
    """Read some queries of the sidecar of the result file ``path``; a DataError where it is broken or lacks one."""
    queries = read_drilldown(path).queries
    try:
        return {query_id: queries[query_id] for query_id in query_ids}
    except KeyError as lacking:
        raise DataError(
            f"{drilldown_path(path)}: lacks query {lacking}, which its result holds; delete both, and evaluate again"
        ) from None
