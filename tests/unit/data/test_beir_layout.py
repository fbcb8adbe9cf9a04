from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support.sources import write_beir

from unimoe.core.errors import DataError
from unimoe.data.collection import Document
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir, split_files

CORPUS = '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": 2, "title": null, "text": "two", "metadata": {"x": 1}}\n'
QUERIES = '{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n{"_id": "q3", "text": "third"}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\t2\t0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    (root / "corpus.jsonl").write_text(CORPUS)
    (root / "queries.jsonl").write_text(QUERIES)
    (root / "qrels" / "test.tsv").write_text(QRELS)
    (root / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\t2\t1\n")
    return root


def test_reads_the_split_and_reports_what_no_split_judges(folder: Path) -> None:
    found = read_beir(folder, "test")
    assert (found.name, found.split) == ("toy", "test")
    assert found.corpus == {"d1": Document("T", "one"), "2": Document("", "two")}
    assert found.queries == {"q1": "first", "q3": "third"}
    assert found.qrels == {"q1": {"d1": 2, "2": 0}}
    assert found.unjudged_queries == ["q3"]


def test_reads_crlf_byte_order_mark_blank_lines_and_gzip_alike(folder: Path) -> None:
    plain = read_beir(folder, "test").content_hash
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        file = folder / name
        windows = b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n\r\n")
        file.write_bytes(windows)
        assert read_beir(folder, "test").content_hash == plain
        file.unlink()
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(windows))
        assert read_beir(folder, "test").content_hash == plain
    assert list(split_files(folder)) == ["dev", "test"]


def test_a_missing_file_names_the_whole_layout(folder: Path) -> None:
    (folder / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"toy: queries\.jsonl is missing; a collection needs corpus\.jsonl, queries"):
        read_beir(folder, "test")
    assert not is_beir_folder(folder)
    with pytest.raises(DataError, match="no such folder; give one that holds"):
        read_beir(folder / "absent", "test")


def test_writes_equal_bytes_for_equal_collections(folder: Path, tmp_path: Path) -> None:
    collection = read_beir(folder, "test")
    for name in ("a", "b"):
        write_beir(collection, tmp_path / name, compress=True)
    names = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.gz"))
    assert [str(name) for name in names] == ["corpus.jsonl.gz", "qrels/test.tsv.gz", "queries.jsonl.gz"]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
