"""NanoBEIR's three tables become a collection, from a folder or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from support.sources import SMALL, content, write_nanobeir

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import available, load_collection
from unimoe.data.source import UnavailableError


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and no hub."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))

    def unreachable(*_: Any, **__: Any) -> str:
        raise ConnectionError("no\nhub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    return tmp_path / "data"


@pytest.fixture
def folder(data: Path) -> Path:
    return write_nanobeir(data / "nanobeir" / "NanoSciFact", SMALL)


@pytest.mark.parametrize("name", ["SciFact", "Scifact", "scifact"])
def test_any_spelling_finds_the_folder(folder: Path, name: str) -> None:
    found = load_collection(f"nanobeir:{name}", "test")
    assert content(found) == content(SMALL)
    assert found.name == "NanoSciFact"
    assert available(f"nanobeir:{name}") == folder


def test_the_hub_is_read_like_the_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def snapshot_download(repo_id: str, *, repo_type: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, repo_type))
        folder = write_nanobeir(tmp_path / "snapshot", SMALL)
        files = [path.relative_to(folder) for path in folder.rglob("*.parquet")]
        assert all(any(file.match(pattern) for pattern in allow_patterns) for file in files)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.delenv("UNIMOE_DATA")
    assert content(load_collection("nanobeir:SciFact", "test")) == content(SMALL)
    assert asked == [("zeta-alpha-ai/NanoSciFact", "dataset")]
    assert available("nanobeir:SciFact") is None


def test_without_the_hub_the_error_says_what_to_do() -> None:
    with pytest.raises(UnavailableError) as caught:
        load_collection("nanobeir:nq", "test")
    assert str(caught.value) == (
        "collection 'nanobeir:NQ' is not available; connect to the network, or set UNIMOE_DATA to a folder that holds "
        "nanobeir/NanoNQ/ with the published tables corpus, queries, qrels (ConnectionError: no hub)"
    )


def test_unknown_sets_and_splits_are_usage_errors(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown collection 'nanobeir:Quora'.*; there are ArguAna, .* Touche2020"):
        load_collection("nanobeir:Quora", "test")
    with pytest.raises(UsageError, match="nanobeir:SciFact has no split 'train'; it has test"):
        load_collection("nanobeir:SciFact", "train")
    assert available("nanobeir:Quora") is None


@pytest.mark.parametrize("part", ["corpus", "queries", "qrels"])
def test_a_missing_table_is_named(folder: Path, part: str) -> None:
    for path in (folder / part).iterdir():
        path.unlink()
    assert available("nanobeir:SciFact") is None
    with pytest.raises(DataError, match=rf"NanoSciFact: {part}/train-\*\.parquet is missing; fetch the set again"):
        load_collection("nanobeir:SciFact", "test")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": ["q"], "text": ["x"]}, r"not a table of _id and text \(No match for .*_id.*\); fetch it again"),
        ({"_id": ["q", "r"], "text": ["x", None]}, "row 2: _id or text is not text"),
        ({"_id": [1], "text": ["x"]}, "row 1: _id or text is not text"),
    ],
)
def test_other_columns_are_refused(folder: Path, table: dict[str, list[Any]], message: str) -> None:
    pyarrow.parquet.write_table(pa.table(table), folder / "queries" / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match=rf"queries/train-00000-of-00001\.parquet: {message}") as caught:
        load_collection("nanobeir:SciFact", "test")
    assert "\n" not in str(caught.value)
