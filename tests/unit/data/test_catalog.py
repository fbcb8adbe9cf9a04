"""A name leads to a collection; whatever the source, the same data gives the same collection."""

from __future__ import annotations

import sys
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import huggingface_hub
import mteb
import pandas as pd
import pytest
from support.toy_collections import SMALL, MtebTask, content, write_beir, write_msmarco

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import available, load_collection, members, refuse_unknown
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.published import CQADUPSTACK
from unimoe.data.source import SOURCES, Source, UnavailableError, register_source


def write_zip(path: Path, folders: dict[str, Collection]) -> Path:
    """A zip as BEIR publishes it, with entries for folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as root, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for folder, collection in folders.items():
            write_beir(collection, Path(root, folder))
        for entry in sorted(Path(root).rglob("*")):
            packed.write(entry, entry.relative_to(root))
    return path


class FakeBeir:
    """In place of ``beir.util``: what it downloads are zips of a folder on this machine."""

    def __init__(self, archives: Path) -> None:
        self.archives = archives
        self.asked: list[str] = []

    def download_url(self, url: str, save_path: str) -> None:
        name = url.rpartition("/")[2]
        self.asked.append(name)
        Path(save_path).write_bytes((self.archives / name).read_bytes())


def write_nanobeir(folder: Path, collection: Collection) -> Path:
    """The three tables of a NanoBEIR set, the corpus in two parts."""
    documents = [(key, text) for key, (_, text) in collection.corpus.items()]
    pairs = [(query, key) for query, grades in collection.qrels.items() for key in grades]
    for name, columns, rows in (
        ("corpus/train-00000-of-00002", ["_id", "text"], documents[:1]),
        ("corpus/train-00001-of-00002", ["_id", "text"], documents[1:]),
        ("queries/train-00000-of-00001", ["_id", "text"], list(collection.queries.items())),
        ("qrels/train-00000-of-00001", ["query-id", "corpus-id"], pairs),
    ):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=columns).to_parquet(path)
    return folder


IrDocument = namedtuple("IrDocument", "doc_id title text")  # fields differ by dataset
IrQrel = namedtuple("IrQrel", "query_id doc_id relevance")


class IrQuery(NamedTuple):
    """A query whose text has another field's name."""

    query_id: str
    title: str

    def default_text(self) -> str:
        """What ir_datasets itself takes for the text."""
        return self.title


def ir_dataset(collection: Collection) -> SimpleNamespace:
    """A dataset as ``ir_datasets.load`` gives it."""
    return SimpleNamespace(
        docs_iter=lambda: (IrDocument(key, *document) for key, document in collection.corpus.items()),
        queries_iter=lambda: (IrQuery(key, text) for key, text in collection.queries.items()),
        qrels_iter=lambda: (
            IrQrel(query, *own) for query, grades in collection.qrels.items() for own in grades.items()
        ),
    )


@pytest.fixture(autouse=True)
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and neither hub nor beir to download with."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(sys.modules, "beir.util", None)

    def unreachable(*_: Any, **__: Any) -> str:
        raise ConnectionError("no\nhub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    return tmp_path / "data"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBeir:
    """A beir that downloads the zips of a folder."""
    fake = FakeBeir(tmp_path / "server")
    monkeypatch.setitem(sys.modules, "beir", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "beir.util", fake)
    return fake


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("fiqa", "test"),
        ("path:{tmp}/beir", "test"),
        ("scifact", "test"),
        ("cqadupstack/tex", "test"),
        ("nfcorpus", "test"),
        ("MSMARCO", "dev"),
        ("path:{tmp}/msmarco-gz", "dev"),
        ("nanobeir:SciFact", "test"),
        ("ir_datasets:a/test", "test"),
        ("mteb:Small", "test"),
    ],
)
def test_every_source_gives_the_same_collection(
    name: str, split: str, data: Path, server: FakeBeir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(SMALL, data / "fiqa")
    write_beir(SMALL, tmp_path / "beir", compress=True)
    write_zip(data / "scifact.zip", {"scifact": SMALL})
    write_zip(data / "cqadupstack.zip", dict.fromkeys(CQADUPSTACK, SMALL))
    write_zip(server.archives / "nfcorpus.zip", {"nfcorpus": SMALL})
    write_msmarco(data / "msmarco", SMALL)
    write_msmarco(tmp_path / "msmarco-gz", SMALL, compress=True)
    write_nanobeir(data / "nanobeir" / "NanoSciFact", SMALL)
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load={"a/test": ir_dataset(SMALL)}.__getitem__))
    monkeypatch.setattr(mteb, "get_task", lambda name: MtebTask.of(SMALL))
    found = load_collection(name.format(tmp=tmp_path), split)
    assert content(found) == content(SMALL)
    assert (found.split, found.checks, found.candidates_only) == (split, (), False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scifct", r"unknown collection 'scifct' \(did you mean 'scifact'\?\); known are apidocs, arguana"),
        ("cqadupstack/andriod", r"'cqadupstack/andriod' \(did you mean 'cqadupstack/android'\?\)"),
        ("cqadupstack", r"is 12 collections, .* write one of cqadupstack/android, cqadup"),
        ("../scifact", r"'../scifact' is no short name; write path:../scifact if it is a folder"),
        ("nanobeir:scfact", r"'nanobeir:scfact' \(did you mean 'scifact'\?\); there are ArguAna, .* Touche2020"),
        ("nanobeir", r"unknown collection 'nanobeir' \(did you mean 'nanobeir:\w+'\?\)"),
        ("bright:biolgy", r"unknown collection 'bright:biolgy' \(did you mean 'biology'\?\)"),
        ("nanobeir:jp/SciFact", r"'nanobeir:jp/SciFact' \(did you mean"),
        ("mteb:", "write a short name, bright:NAME, ir_datasets:ID, miracl:NAME, mteb:TASK, nanobeir:NAME or path:DIR"),
        ("paht:x", r"or path:DIR \(did you mean 'path'\?\)"),
        ("mteb:SciFactt", r"mteb has no task 'SciFactt' \(did you mean 'SciFact'\?\)"),
        ("mteb:STS12", "mteb:STS12 is not a retrieval task"),
    ],
)
def test_unknown_names_are_usage_errors(name: str, message: str) -> None:
    early = name in ("scifct", "cqadupstack", "mteb:", "paht:x")  # known without a source, before hours of others
    find: Any = refuse_unknown if early else partial(load_collection, split="test")
    with pytest.raises(UsageError, match=message):
        find(name)


def test_a_users_source_that_raises_or_returns_no_collection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Source):
        usage = "own:NAME"

        def load(self, name: str, split: str) -> Any:
            return {"x": None}[name]

    monkeypatch.setattr(SOURCES, "_things", dict(SOURCES.items()))
    register_source("own", Own())
    words = {"y": r"source 'own' raised KeyError: 'y' \(test_cat.*; fix it", "x": "own:x: its source returned NoneType"}
    for name, line in words.items():
        with pytest.raises(DataError, match=line):
            load_collection(f"own:{name}", "test")


def test_a_path_names_the_collection_and_beir_layout_goes_before_msmarco_files(tmp_path: Path) -> None:
    folder = write_beir(SMALL, tmp_path / "both")
    write_msmarco(folder, SMALL.pool(3))
    (folder / "collection.tsv").write_text("1\tanother corpus\n")
    found = load_collection(f"path:{folder}", "test")
    assert (found.name, content(found)) == ("both", content(SMALL))
    assert available(f"path:{folder}") == folder


def test_a_zip_of_any_spelling_is_unpacked_once(data: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available("FiQA2018") is None
    archive = write_zip(data / "fiqa.zip", {"fiqa": SMALL})
    assert available("FiQA2018") == archive
    assert not list(tmp_cache.rglob("corpus.jsonl"))
    found = load_collection("FiQA2018", "test")
    assert (found.name, content(found)) == ("fiqa", content(SMALL))
    monkeypatch.setattr(zipfile.ZipFile, "extractall", lambda *_: pytest.fail("unpacked twice"))
    assert content(load_collection("fiqa", "test")) == content(SMALL)


def test_a_zip_with_another_top_folder_is_refused(data: Path) -> None:
    write_zip(data / "fiqa.zip", {"scifact": SMALL})
    with pytest.raises(DataError, match=r"fiqa\.zip: holds no folder fiqa/ in BEIR layout; use the zip as publ"):
        load_collection("fiqa", "test")


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_zip_that_is_cut_or_encrypted_leaves_nothing_behind(data: Path, tmp_cache: Path, encrypted: bool) -> None:
    archive = write_zip(data / "fiqa.zip", {"fiqa": SMALL})
    whole = archive.read_bytes()
    changed = bytearray(whole if encrypted else whole[:-30])
    changed[whole.rindex(b"fiqa/corpus.jsonl") - 38] |= encrypted  # the flags in the central directory
    archive.write_bytes(changed)
    with pytest.raises(DataError, match=r"fiqa\.zip: cannot be unpacked \(.+\); fetch it again"):
        load_collection("fiqa", "test")
    assert not list(tmp_cache.rglob("corpus.jsonl"))
    archive.write_bytes(whole)
    assert content(load_collection("fiqa", "test")) == content(SMALL)


def test_a_broken_download_leaves_nothing_behind(server: FakeBeir, tmp_cache: Path) -> None:
    archive = write_zip(server.archives / "fiqa.zip", {"fiqa": SMALL})
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(
        UnavailableError, match=r"'fiqa' is not available; .*fiqa\.zip: cannot be unpacked \(File is no"
    ):
        load_collection("fiqa", "test")
    assert available("fiqa") is None
    assert not list(tmp_cache.rglob("*.zip"))


def test_a_download_that_unpacks_to_far_more_than_texts_do_is_refused(server: FakeBeir, tmp_cache: Path) -> None:
    server.archives.mkdir()
    with zipfile.ZipFile(server.archives / "fiqa.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("fiqa/corpus.jsonl", " " * 2**22)
    with pytest.raises(UnavailableError, match=r"fiqa\.zip: unpacks to 4,194,304 bytes or more, over 50 times its"):
        load_collection("fiqa", "test")
    assert not list(tmp_cache.rglob("corpus.jsonl"))


def test_one_download_holds_the_twelve_of_cqadupstack_and_is_kept(server: FakeBeir) -> None:
    def forum(name: str) -> Collection:
        document = (name, Document("T", f"about {name}"))
        return assemble(name, "test", [document], [("q1", "first")], {"q1": {name: 1}})

    write_zip(server.archives / "cqadupstack.zip", {name: forum(name) for name in CQADUPSTACK})
    assert members("CQADupStack") == CQADUPSTACK
    for name in CQADUPSTACK:
        found = load_collection(name, "test")
        assert (found.name, content(found)) == (name, content(forum(name)))
    assert server.asked == ["cqadupstack.zip"]
    assert available("cqadupstack/tex") is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "cqadupstack/tex",
            r"set UNIMOE_DATA to a folder that holds cqadupstack/tex/ in BEIR layout or cqadupstack\.zip as published, "
            r"or install the extra \(uv sync --extra collections\) and connect to the network \(",
        ),
        ("nanobeir:NQ", r"connect .*, or set UNIMOE_DATA to .* nanobeir/NanoNQ/ with .*\(ConnectionError: no hub\)"),
    ],
)
def test_without_a_network_the_error_says_what_to_do(name: str, words: str) -> None:
    with pytest.raises(UnavailableError, match=f"^collection {name!r} is not available; {words}"):
        load_collection(name, "test")


ROWS = {
    "corpus": [{"id": "d1", "title": None, "text": "one"}, {"id": "d2", "text": "two"}],
    "queries": [{"id": "q1", "text": "first"}, {"id": "q2", "text": "second", "instruction": "be brief"}],
    "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}},
}


def test_rows_of_mteb_become_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: MtebTask(ROWS))
    found = load_collection("mteb:Toy", "dev")
    documents = {"d1": Document("", "one"), "d2": Document("", "two")}
    assert content(found) == (documents, {"q1": "first", "q2": "second be brief"}, ROWS["relevant_docs"])


@pytest.mark.parametrize(
    ("name", "split", "options", "words"),
    [
        ("mteb:Toy", "train", {}, "mteb:Toy has no split 'train'; it has dev, test"),
        ("mteb:Toy", "test", {"subsets": ("kor", "eng")}, "mteb:Toy has subsets kor, eng; write mteb:Toy:kor"),
        ("mteb:Toy:deu", "test", {"subsets": ("kor", "eng")}, "no such subset"),
        ("mteb:Toy", "test", {"rows": {**ROWS, "queries": [{"id": "q1", "text": None}]}}, "'q1' is not text; only"),
        ("mteb:Toy", "test", {"error": ConnectionError("no hub")}, "is not available; connect to the network, or"),
    ],
)
def test_what_cannot_be_loaded_of_mteb_is_one_line(
    name: str, split: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: MtebTask(**{"rows": ROWS, **options}))
    with pytest.raises((UsageError, DataError), match=words):
        load_collection(name, split)


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    queries = [("q1", "first"), ("q2", "unjudged")]
    toy = ir_dataset(assemble("toy", "test", [("d1", Document("T", "one"))], queries, {"q1": {"d1": 3}}))
    sets = {"toy/test": toy, "toy": SimpleNamespace(docs_iter=toy.docs_iter)}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=sets.__getitem__))
    return toy


def test_records_of_ir_datasets_become_a_collection(dataset: SimpleNamespace) -> None:
    found = load_collection("ir_datasets:toy/test", "test")
    assert content(found) == ({"d1": Document("T", "one")}, {"q1": "first", "q2": "unjudged"}, {"q1": {"d1": 3}})
    assert (found.name, found.unjudged_queries) == ("toy/test", ["q2"])


def test_what_cannot_be_loaded_of_ir_datasets_is_one_line(
    dataset: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="ir_datasets:toy has no queries and no qrels; name one of its splits"):
        load_collection("ir_datasets:toy", "test")
    with pytest.raises(UsageError, match="ir_datasets has no dataset 'nope'"):
        load_collection("ir_datasets:nope", "test")

    def cut_off() -> Iterator[IrDocument]:
        yield IrDocument("d1", "T", "one")
        raise ConnectionError("cut off")

    dataset.docs_iter = cut_off
    with pytest.raises(UnavailableError, match=r"connect to the network \(ConnectionError: cut off\)"):
        load_collection("ir_datasets:toy/test", "test")
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(UnavailableError, match=r"'ir_datasets:toy/test' is not available; install the extra"):
        load_collection("ir_datasets:toy/test", "test")


@pytest.fixture
def nanobeir(data: Path) -> Path:
    return write_nanobeir(data / "nanobeir" / "NanoSciFact", SMALL)


def test_any_spelling_finds_the_folder_of_nanobeir(nanobeir: Path) -> None:
    assert load_collection("nanobeir:scifact", "test").name == "NanoSciFact"
    assert available("nanobeir:scifact") == nanobeir
    with pytest.raises(UsageError, match="nanobeir:SciFact has no split 'train'; it has test"):
        load_collection("nanobeir:SciFact", "train")


def test_nanobeir_of_the_hub_is_read_like_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo_id: str, *, repo_type: str, allow_patterns: list[str]) -> str:
        assert (repo_id, repo_type) == ("zeta-alpha-ai/NanoSciFact", "dataset")
        folder = write_nanobeir(tmp_path / "snapshot", SMALL)
        files = [path.relative_to(folder) for path in folder.rglob("*.parquet")]
        assert all(any(file.match(pattern) for pattern in allow_patterns) for file in files)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert content(load_collection("nanobeir:SciFact", "test")) == content(SMALL)
    assert available("nanobeir:SciFact") is None


def test_a_missing_table_or_column_of_nanobeir_is_named(nanobeir: Path) -> None:
    (table,) = (nanobeir / "queries").iterdir()
    pd.DataFrame({"id": ["q"], "text": ["x"]}).to_parquet(table)
    with pytest.raises(DataError, match=r"NanoSciFact: queries/train-\*\.parquet has no table of _id and text \("):
        load_collection("nanobeir:SciFact", "test")
    table.unlink()
    assert available("nanobeir:SciFact") is None
    with pytest.raises(DataError, match="fetch the set again"):
        load_collection("nanobeir:SciFact", "test")
