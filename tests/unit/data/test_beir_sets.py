"""A BEIR set is a folder, a zip put by hand, or a download that is kept."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.sources import SMALL, FakeBeir, content, write_beir, write_msmarco, write_zip

from unimoe.core.errors import DataError
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.source import UnavailableError
from unimoe.data.sources.beir_sets import CQADUPSTACK


@pytest.fixture(autouse=True)
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and no beir to download with."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(sys.modules, "beir.util", None)
    return tmp_path / "data"


class TestFolder:
    @pytest.mark.parametrize("name", ["fiqa", "FiQA", "FiQA2018"])
    def test_any_spelling_finds_it(self, data: Path, name: str) -> None:
        assert available(name) is None
        write_beir(SMALL, data / "fiqa")
        found = load_collection(name, "test")
        assert found.name == "fiqa"
        assert content(found) == content(SMALL)
        assert available(name) == data / "fiqa"

    def test_msmarco_may_be_its_published_files(self, data: Path) -> None:
        write_msmarco(data / "msmarco", SMALL)
        assert available("msmarco") == data / "msmarco"
        assert load_collection("MSMARCO", "dev").name == "msmarco"
        (data / "msmarco" / "qrels.dev.small.tsv").unlink()
        assert available("msmarco") is None
        with pytest.raises(DataError, match=r"msmarco: no qrels\.dev\.small\.tsv; MS MARCO needs"):
            load_collection("msmarco", "dev")


class TestZipByHand:
    def test_is_unpacked_once(self, data: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        archive = write_zip(data / "fiqa.zip", {"fiqa": SMALL})
        assert available("FiQA2018") == archive
        assert not list(tmp_cache.rglob("corpus.jsonl"))
        assert content(load_collection("FiQA2018", "test")) == content(SMALL)
        monkeypatch.setattr(zipfile.ZipFile, "extractall", lambda *_: pytest.fail("unpacked twice"))
        assert content(load_collection("fiqa", "test")) == content(SMALL)

    @pytest.mark.parametrize("top", ["scifact", "."])
    def test_another_top_folder_is_refused(self, data: Path, top: str) -> None:
        write_zip(data / "fiqa.zip", {top: SMALL})
        with pytest.raises(DataError, match=r"fiqa\.zip: holds no folder fiqa/ in BEIR layout; use the zip as publ"):
            load_collection("fiqa", "test")

    @pytest.mark.parametrize("damage", ["cut", "empty", "overwritten", "encrypted"])
    def test_a_damaged_one_leaves_nothing_behind(self, data: Path, tmp_cache: Path, damage: str) -> None:
        archive = write_zip(data / "fiqa.zip", {"fiqa": SMALL})
        whole = archive.read_bytes()
        archive.write_bytes(damaged(whole, damage))
        with pytest.raises(DataError, match=r"fiqa\.zip: cannot be unpacked \(.+\); fetch it again"):
            load_collection("fiqa", "test")
        assert not list(tmp_cache.rglob("corpus.jsonl"))
        archive.write_bytes(whole)
        assert content(load_collection("fiqa", "test")) == content(SMALL)


class TestDownload:
    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBeir:
        """A beir that downloads the zips of a folder."""
        fake = FakeBeir(tmp_path / "server")
        monkeypatch.setitem(sys.modules, "beir", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "beir.util", fake)
        return fake

    def test_is_kept(self, server: FakeBeir) -> None:
        write_zip(server.archives / "fiqa.zip", {"fiqa": SMALL})
        for _ in range(2):
            assert content(load_collection("FiQA2018", "test")) == content(SMALL)
        assert server.asked == ["fiqa.zip"]
        assert available("fiqa") is not None

    def test_a_broken_one_leaves_nothing_behind(self, server: FakeBeir, tmp_cache: Path) -> None:
        archive = write_zip(server.archives / "fiqa.zip", {"fiqa": SMALL})
        archive.write_bytes(archive.read_bytes()[:-30])
        with pytest.raises(
            UnavailableError, match=r"'fiqa' is not available; .*\(BadZipFile: File is not a zip file\)"
        ):
            load_collection("fiqa", "test")
        assert available("fiqa") is None
        assert not list(tmp_cache.rglob("*.zip"))

    @pytest.mark.parametrize(("name", "top"), [("fiqa", "fiqa"), ("cqadupstack/tex", "cqadupstack")])
    def test_without_it_the_error_says_what_to_do(self, name: str, top: str) -> None:
        with pytest.raises(UnavailableError) as caught:
            load_collection(name, "test")
        assert str(caught.value).startswith(
            f"collection '{name}' is not available; set UNIMOE_DATA to a folder that holds {name}/ in BEIR layout or "
            f"{top}.zip as published, or install the extra (uv sync --extra collections) and connect to the network ("
        )
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 3


class TestCqadupstack:
    @pytest.fixture
    def published(self, tmp_path: Path) -> Path:
        """The zip of twelve folders, each with a document of its own."""
        return write_zip(tmp_path / "server" / "cqadupstack.zip", {name: subforum(name) for name in CQADUPSTACK})

    def test_one_download_holds_the_twelve(self, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        server = FakeBeir(published.parent)
        monkeypatch.setitem(sys.modules, "beir", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "beir.util", server)
        assert_the_twelve()
        assert server.asked == ["cqadupstack.zip"]

    def test_unpacked_folders_are_found(self, published: Path, data: Path) -> None:
        with zipfile.ZipFile(published) as packed:
            packed.extractall(data)
        assert_the_twelve()
        assert available("CQADupStack/Android") == data / "cqadupstack" / "android"


def damaged(whole: bytes, damage: str) -> bytes:
    """The bytes of a zip, with its corpus or its end made unreadable."""
    if damage in {"cut", "empty"}:
        return whole[:-30] if damage == "cut" else b""
    name, changed = b"fiqa/corpus.jsonl", bytearray(whole)
    if damage == "overwritten":
        start = whole.index(name) + len(name)
        changed[start : start + 8] = b"\xff" * 8
    else:
        changed[whole.rindex(name) - 38] |= 1  # the flags in the central directory
    return bytes(changed)


def subforum(name: str) -> Collection:
    return assemble(name, "test", [(name, Document("T", f"about {name}"))], [("q1", "first")], {"q1": {name: 1}})


def assert_the_twelve() -> None:
    for name in CQADUPSTACK:
        found = load_collection(name, "test")
        assert found.name == name
        assert content(found) == content(subforum(name))
        assert available(name) is not None
