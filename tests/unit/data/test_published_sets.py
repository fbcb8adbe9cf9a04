"""Collections as MTEB, ir_datasets and NanoBEIR publish them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import mteb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from support.sources import SMALL, IrDocument, IrQrel, IrQuery, MtebTask, content, write_nanobeir

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Document
from unimoe.data.source import UnavailableError

ROWS = {
    "corpus": [{"id": "d1", "title": None, "text": "one"}, {"id": "d2", "text": "two"}],
    "queries": [{"id": "q1", "text": "first"}, {"id": "q2", "text": "second", "instruction": "be brief"}],
    "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}},
}


def serve(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: MtebTask(**{"rows": ROWS, **options}))


def test_rows_become_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch)
    found = load_collection("mteb:Toy", "dev")
    assert (found.name, found.split) == ("Toy", "dev")
    assert found.corpus == {"d1": Document("", "one"), "d2": Document("", "two")}
    assert found.queries == {"q1": "first", "q2": "second be brief"}
    assert found.qrels == {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}}
    with pytest.raises(UsageError, match="mteb:Toy has no split 'train'; it has dev, test"):
        load_collection("mteb:Toy", "train")


def test_subsets_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, subsets=("kor", "eng"))
    assert load_collection("mteb:Toy:kor", "test").name == "Toy:kor"
    with pytest.raises(UsageError, match="mteb:Toy has subsets kor, eng; write mteb:Toy:kor"):
        load_collection("mteb:Toy", "test")
    with pytest.raises(UsageError, match="no such subset"):
        load_collection("mteb:Toy:deu", "test")


def test_what_is_not_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, rows={**ROWS, "queries": [{"id": "q1", "text": None, "image": b""}]})
    with pytest.raises(DataError, match="mteb:Toy: 'q1' is not text; only text retrieval can be loaded"):
        load_collection("mteb:Toy", "test")


def test_without_a_network_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, error=ConnectionError("no hub"))
    with pytest.raises(UnavailableError, match=r"'mteb:Toy' is not available; connect to the network, or .*no hub"):
        load_collection("mteb:Toy", "test")


@pytest.fixture
def dataset() -> SimpleNamespace:
    return SimpleNamespace(
        docs_iter=lambda: iter([IrDocument("d1", "T", "one")]),
        queries_iter=lambda: iter([IrQuery("q1", "first"), IrQuery("q2", "unjudged")]),
        qrels_iter=lambda: iter([IrQrel("q1", "d1", 3)]),
    )


@pytest.fixture(autouse=True)
def sets(dataset: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    sets = {"toy/test": dataset, "toy": SimpleNamespace(docs_iter=dataset.docs_iter)}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=sets.__getitem__))
    return sets


def test_records_become_a_collection() -> None:
    found = load_collection("ir_datasets:toy/test", "test")
    assert content(found) == ({"d1": Document("T", "one")}, {"q1": "first", "q2": "unjudged"}, {"q1": {"d1": 3}})
    assert (found.name, found.split) == ("toy/test", "test")
    assert found.unjudged_queries == ["q2"]


def test_unknown_and_unjudged_datasets_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="ir_datasets:toy has no queries and no qrels; name one of its splits"):
        load_collection("ir_datasets:toy", "test")
    with pytest.raises(UsageError, match="ir_datasets has no dataset 'nope'"):
        load_collection("ir_datasets:nope", "test")


def test_without_the_package_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(UnavailableError, match=r"'ir_datasets:toy/test' is not available; install the extra"):
        load_collection("ir_datasets:toy/test", "test")


def test_a_download_may_fail_while_it_iterates(dataset: SimpleNamespace) -> None:
    def cut_off() -> Iterator[IrDocument]:
        yield IrDocument("d1", "T", "one")
        raise ConnectionError("cut off")

    dataset.docs_iter = cut_off
    with pytest.raises(UnavailableError, match=r"connect to the network \(ConnectionError: cut off\)"):
        load_collection("ir_datasets:toy/test", "test")


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
