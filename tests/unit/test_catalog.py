from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import mteb
import pytest

from unimoe.data.beir_layout import write_beir
from unimoe.data.catalog import BEIR_NAMES, UnavailableError, available, load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.errors import DataError, UsageError

TOY = assemble("fiqa", "test", [("d1", Document("T", "one"))], [("q1", "first")], {"q1": {"d1": 1}})


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    return tmp_path


def content(collection: Collection) -> tuple[Any, ...]:
    return collection.corpus, collection.queries, collection.qrels


@pytest.mark.parametrize("name", ["fiqa", "FiQA", "FiQA2018"])
def test_short_names_are_folders_under_unimoe_data(own_folders: Path, name: str) -> None:
    assert available(name) is None
    write_beir(TOY, own_folders / "data" / "fiqa")
    found = load_collection(name, "test")
    assert found.name == "fiqa"
    assert content(found) == content(TOY)
    assert available(name) == own_folders / "data" / "fiqa"


def test_a_folder_of_any_name_is_found(own_folders: Path) -> None:
    write_beir(TOY, own_folders / "data" / "mine" / "Part")
    assert load_collection("mine/Part", "test").name == "mine/Part"


def test_a_damaged_folder_is_named_rather_than_passed_over(own_folders: Path) -> None:
    (own_folders / "data" / "scifact").mkdir(parents=True)
    with pytest.raises(DataError, match=r"scifact: corpus\.jsonl is missing"):
        load_collection("scifact", "test")
    assert available("scifact") is None


def test_path_takes_a_folder(own_folders: Path) -> None:
    write_beir(TOY, own_folders / "anywhere")
    name = f"path:{own_folders / 'anywhere'}"
    assert load_collection(name, "test").name == "anywhere"
    assert available(name) == own_folders / "anywhere"
    assert available("path:/no/such/folder") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scifct", r"unknown collection 'scifct' \(did you mean 'scifact'\?\); known are apidocs, arguana"),
        ("../data", r"'\.\./data' is no short name; write path:\.\./data"),
        ("paht:x", r"'paht:x': write a short name, path:DIR, ir_datasets:ID or mteb:TASK \(did you mean 'path'\?\)"),
        ("mteb:", "write a short name"),
        ("mteb:SciFactt", r"mteb has no task 'SciFactt' \(did you mean 'SciFact'\?\)"),
        ("mteb:STS12", "mteb:STS12 is not a retrieval task"),
    ],
)
def test_unknown_names_are_usage_errors(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_collection(name, "test")


def test_what_cannot_be_had_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "beir.util", None)
    with pytest.raises(UnavailableError) as caught:
        load_collection("fiqa", "test")
    assert str(caught.value).startswith(
        "collection 'fiqa' is not at hand; set UNIMOE_DATA to a folder that holds fiqa/ in BEIR layout, "
        "or install the extra (uv sync --extra collections) and connect to the network ("
    )
    assert caught.value.exit_code == 3


def fake_beir(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    monkeypatch.setitem(sys.modules, "beir", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "beir.util", SimpleNamespace(download_and_unzip=download))


def test_a_download_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(url: str, folder: str) -> str:
        asked.append(url.rpartition("/")[2])
        write_beir(TOY, Path(folder, "fiqa"))
        return str(Path(folder, "fiqa"))

    fake_beir(monkeypatch, download)
    for _ in range(2):
        assert content(load_collection("FiQA2018", "test")) == content(TOY)
    assert asked == ["fiqa.zip"]
    assert available("fiqa") is not None


def test_a_broken_download_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(url: str, folder: str) -> str:
        Path(folder, "fiqa.zip").write_bytes(b"half")
        raise ConnectionError("no route\nto host")

    fake_beir(monkeypatch, download)
    with pytest.raises(UnavailableError, match=r"\(ConnectionError: no route to host\)"):
        load_collection("fiqa", "test")
    assert available("fiqa") is None


def test_apidocs_is_always_at_hand() -> None:
    assert available("apidocs") is not None
    assert "apidocs" not in BEIR_NAMES


class IrDocument(NamedTuple):
    doc_id: str
    title: str
    text: str


class IrQuery(NamedTuple):
    query_id: str
    title: str

    def default_text(self) -> str:
        return self.title


class IrQrel(NamedTuple):
    query_id: str
    doc_id: str
    relevance: int


def test_ir_datasets_records_become_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SimpleNamespace(
        docs_iter=lambda: iter([IrDocument("d1", "T", "one")]),
        queries_iter=lambda: iter([IrQuery("q1", "first"), IrQuery("q2", "unjudged")]),
        qrels_iter=lambda: iter([IrQrel("q1", "d1", 3)]),
    )
    sets = {"toy/test": dataset, "toy": SimpleNamespace(docs_iter=dataset.docs_iter)}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=sets.__getitem__))
    found = load_collection("ir_datasets:toy/test", "test")
    assert content(found) == (TOY.corpus, {"q1": "first", "q2": "unjudged"}, {"q1": {"d1": 3}})
    assert found.unjudged_queries == ["q2"]
    with pytest.raises(UsageError, match="ir_datasets:toy has no queries and no qrels; name one of its splits"):
        load_collection("ir_datasets:toy", "test")
    with pytest.raises(UsageError, match="ir_datasets has no dataset 'nope'"):
        load_collection("ir_datasets:nope", "test")


class FakeTask:
    """What mteb gives for a retrieval task, with rows as plain dicts."""

    eval_splits: tuple[str, ...] = ("dev", "test")

    def __init__(self, subsets: tuple[str, ...] = ("default",), error: Exception | None = None) -> None:
        self.subsets, self.error = subsets, error
        self.dataset: dict[str, Any] = {}

    def filter_eval_splits(self, splits: list[str]) -> FakeTask:
        self.eval_splits = tuple(splits)
        return self

    def load_data(self) -> None:
        if self.error is not None:
            raise self.error
        rows = {
            "corpus": [{"id": "d1", "title": None, "text": "one"}, {"id": "d2", "text": "two"}],
            "queries": [{"id": "q1", "text": "first"}, {"id": "q2", "text": "second", "instruction": "be brief"}],
            "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}},
        }
        self.dataset = {subset: dict.fromkeys(self.eval_splits, rows) for subset in self.subsets}

    def convert_v1_dataset_format_to_v2(self, num_proc: int | None) -> None:
        pass


def test_mteb_tasks_become_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: FakeTask())
    found = load_collection("mteb:Toy", "dev")
    assert (found.name, found.split) == ("Toy", "dev")
    assert found.corpus == {"d1": Document("", "one"), "d2": Document("", "two")}
    assert found.queries == {"q1": "first", "q2": "second be brief"}
    assert found.qrels == {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}}
    with pytest.raises(UsageError, match="mteb:Toy has no split 'train'; it has dev, test"):
        load_collection("mteb:Toy", "train")


def test_mteb_subsets_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: FakeTask(subsets=("kor", "eng")))
    assert load_collection("mteb:Toy:kor", "test").name == "Toy:kor"
    with pytest.raises(UsageError, match="mteb:Toy has subsets kor, eng; write mteb:Toy:kor"):
        load_collection("mteb:Toy", "test")
    with pytest.raises(UsageError, match="no such subset"):
        load_collection("mteb:Toy:deu", "test")


def test_mteb_without_a_network_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: FakeTask(error=ConnectionError("no hub")))
    with pytest.raises(UnavailableError, match=r"'mteb:Toy' is not at hand; connect to the network, or .*no hub"):
        load_collection("mteb:Toy", "test")
