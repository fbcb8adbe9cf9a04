"""Retrieval tasks of MTEB become collections."""

from __future__ import annotations

from typing import Any

import mteb
import pytest
from support.sources import MtebTask

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection
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
