"""A name leads to a collection; whatever the source, the same data gives the same collection."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import mteb
import pytest
from support.sources import (
    SMALL,
    FakeBeir,
    MtebTask,
    content,
    ir_dataset,
    write_beir,
    write_msmarco,
    write_nanobeir,
    write_zip,
)

from unimoe.core.errors import UsageError
from unimoe.data.catalog import available, load_collection, members
from unimoe.data.sources.beir_sets import CQADUPSTACK


@pytest.fixture(autouse=True)
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and an empty cache."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


class TestSameCollectionFromEverySource:
    @pytest.fixture(autouse=True)
    def sources(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_beir(SMALL, data / "fiqa")
        write_beir(SMALL, tmp_path / "beir", compress=True)
        write_zip(data / "scifact.zip", {"scifact": SMALL})
        write_zip(data / "cqadupstack.zip", dict.fromkeys(CQADUPSTACK, SMALL))
        write_zip(tmp_path / "server" / "nfcorpus.zip", {"nfcorpus": SMALL})
        write_msmarco(data / "msmarco", SMALL)
        write_msmarco(tmp_path / "msmarco-gz", SMALL, compress=True)
        write_nanobeir(data / "nanobeir" / "NanoSciFact", SMALL)
        monkeypatch.setitem(sys.modules, "beir", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "beir.util", FakeBeir(tmp_path / "server"))
        monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load={"a/test": ir_dataset(SMALL)}.__getitem__))
        monkeypatch.setattr(mteb, "get_task", lambda name: MtebTask.of(SMALL))

    @pytest.mark.parametrize(
        ("name", "split"),
        [
            ("fiqa", "test"),
            ("path:{tmp}/beir", "test"),
            ("scifact", "test"),
            ("cqadupstack/tex", "test"),
            ("nfcorpus", "test"),
            ("msmarco", "dev"),
            ("path:{tmp}/msmarco-gz", "dev"),
            ("nanobeir:SciFact", "test"),
            ("ir_datasets:a/test", "test"),
            ("mteb:Small", "test"),
        ],
    )
    def test_name(self, name: str, split: str, tmp_path: Path) -> None:
        found = load_collection(name.format(tmp=tmp_path), split)
        assert content(found) == content(SMALL)
        assert found.split == split
        assert found.oddities == ""
        assert not found.candidates_only


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scifct", r"unknown collection 'scifct' \(did you mean 'scifact'\?\); known are apidocs, arguana"),
        ("cqadupstack/andriod", r"'cqadupstack/andriod' \(did you mean 'cqadupstack/android'\?\)"),
        ("nanobeir:scfact", r"'nanobeir:scfact' \(did you mean 'scifact'\?\); there are ArguAna, ClimateFEVER"),
        ("nanobeir", r"unknown collection 'nanobeir' \(did you mean 'nanobeir:\w+'\?\)"),
        ("nanobeir:", "write a short name"),
        ("mteb:", "write a short name"),
        ("mteb:SciFactt", r"mteb has no task 'SciFactt' \(did you mean 'SciFact'\?\)"),
        ("mteb:STS12", "mteb:STS12 is not a retrieval task"),
    ],
)
def test_unknown_names_are_usage_errors(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_collection(name, "test")


class TestPath:
    def test_takes_a_folder_and_names_the_collection_after_it(self, tmp_path: Path) -> None:
        write_beir(SMALL, tmp_path / "anywhere")
        name = f"path:{tmp_path / 'anywhere'}"
        assert load_collection(name, "test").name == "anywhere"
        assert available(name) == tmp_path / "anywhere"

    def test_beir_layout_goes_before_msmarco_files_in_one_folder(self, tmp_path: Path) -> None:
        write_beir(SMALL, tmp_path / "both")
        write_msmarco(tmp_path / "both", SMALL.pool(3))
        (tmp_path / "both" / "collection.tsv").write_text("1\tanother corpus\n")
        assert content(load_collection(f"path:{tmp_path / 'both'}", "test")) == content(SMALL)


class TestMembers:
    def test_cqadupstack_is_twelve_collections(self) -> None:
        assert members("cqadupstack") == members("CQADupStack") == CQADUPSTACK
        assert len(set(CQADUPSTACK)) == 12

    def test_the_twelve_cannot_be_loaded_as_one(self, data: Path) -> None:
        (data / "cqadupstack").mkdir(parents=True)
        with pytest.raises(UsageError, match=r"is 12 collections, .* write one of cqadupstack/android, cqadup"):
            load_collection("cqadupstack", "test")
