"""Datasets of ir_datasets become collections."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.sources import IrDocument, IrQrel, IrQuery, content

from unimoe.core.errors import UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Document
from unimoe.data.source import UnavailableError


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
