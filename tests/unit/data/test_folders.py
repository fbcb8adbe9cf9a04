"""Folders in BEIR layout and with MS MARCO's published files: what is read, and which line names a mistake."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support.sources import SMALL, content, write_beir, write_msmarco

from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Document
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir
from unimoe.data.sources.msmarco import is_msmarco_folder, read_msmarco, read_top1000


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    (root / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": 2, "title": null, "text": "two", "metadata": {"x": 1}}\n'
    )
    (root / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "query {i}"}}\n' for i in (1, 2, 3)))
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\t2\t0\n")
    (root / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\t2\t1\n")
    return root


class TestBeir:
    def test_reads_the_split_and_reports_what_no_split_judges(self, beir: Path) -> None:
        found = read_beir(beir, "test")
        assert (found.name, found.split) == ("toy", "test")
        assert found.corpus == {"d1": Document("T", "one"), "2": Document("", "two")}
        assert found.queries == {"q1": "query 1", "q3": "query 3"}
        assert found.qrels == {"q1": {"d1": 2, "2": 0}}
        assert found.unjudged_queries == ["q3"]

    def test_reads_crlf_byte_order_mark_blank_lines_and_gzip_alike(self, beir: Path) -> None:
        plain = read_beir(beir, "test").content_hash
        for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            file = beir / name
            windows = b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n\r\n")
            file.write_bytes(windows)
            assert read_beir(beir, "test").content_hash == plain
            file.unlink()
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(windows))
            assert read_beir(beir, "test").content_hash == plain

    def test_a_missing_part_is_named(self, beir: Path) -> None:
        with pytest.raises(UsageError, match=r"toy: no split 'tset' \(did you mean 'test'\?\); there is dev, test"):
            read_beir(beir, "tset")
        with pytest.raises(DataError, match="no such folder; give one that holds"):
            read_beir(beir / "absent", "test")
        (beir / "queries.jsonl").unlink()
        assert not is_beir_folder(beir)
        with pytest.raises(DataError, match=r"toy: queries\.jsonl is missing; a collection needs corpus\.jsonl, qu"):
            read_beir(beir, "test")

    def test_writes_equal_bytes_for_equal_collections(self, beir: Path, tmp_path: Path) -> None:
        collection = read_beir(beir, "test")
        for name in ("a", "b"):
            write_beir(collection, tmp_path / name, compress=True)
        names = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.gz"))
        assert [str(name) for name in names] == ["corpus.jsonl.gz", "qrels/test.tsv.gz", "queries.jsonl.gz"]
        assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


@pytest.fixture
def msmarco(tmp_path: Path) -> Path:
    return write_msmarco(tmp_path / "msmarco", SMALL)


def remove(folder: Path, *names: str) -> None:
    for path in (path for name in names for path in folder.glob(f"{name}*")):
        path.unlink()


class TestMsMarco:
    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("absent", [("collection.tsv",), ("collection.tsv", "queries.dev.small.tsv")])
    def test_candidates_stand_in_for_the_corpus_and_the_collection_says_so(
        self, tmp_path: Path, absent: tuple[str, ...], compress: bool
    ) -> None:
        folder = write_msmarco(tmp_path / "msmarco", SMALL, compress=compress)
        (top1000,) = folder.glob("top1000.dev*")
        assert read_top1000(top1000) == {"101": ["9", "12", "7"], "205": ["9", "12", "7"]}
        remove(folder, *absent)
        assert is_msmarco_folder(folder)
        found = read_msmarco(folder, "dev")
        assert content(found) == content(SMALL)
        assert found.sample_queries(1).candidates_only
        assert found.oddities == ""

    @pytest.mark.parametrize(
        ("absent", "message"),
        [
            (["qrels.dev.small.tsv"], r"no qrels\.dev\.small\.tsv; MS MARCO needs .* or with top1000\.dev"),
            (["top1000.dev", "collection.tsv"], r"no collection\.tsv; MS MARCO needs"),
            (["top1000.dev", "queries", "qrels"], r"no qrels\.dev\.small\.tsv and no queries\.dev\.small\.tsv"),
        ],
    )
    def test_what_is_missing_is_named(self, msmarco: Path, absent: list[str], message: str) -> None:
        with pytest.raises(UsageError, match="msmarco: no split 'train'; there is dev"):
            read_msmarco(msmarco, "train")
        remove(msmarco, *absent)
        assert not is_msmarco_folder(msmarco)
        with pytest.raises(DataError, match=message):
            read_msmarco(msmarco, "dev")

    @pytest.mark.parametrize(
        ("file", "line", "message"),
        [
            ("collection.tsv", "77", r"collection\.tsv:4: a line has 2 fields .* \(pid, passage\), this one 1; fix it"),
            ("queries.dev.small.tsv", "77 a query", r"queries\.dev\.small\.tsv:3: a line has 2 fields"),
            ("qrels.dev.small.tsv", "101\t0\t7\tyes", r"qrels\.dev\.small\.tsv:4: grade 'yes' is not a number"),
            ("qrels.dev.small.tsv", "300\t0\t7\t1", "query '300' is judged in split 'dev' but is not among the q"),
            ("collection.tsv", "7 7\ttext", "id '7 7' is empty or holds white space"),
        ],
    )
    def test_a_bad_line_is_named(self, msmarco: Path, file: str, line: str, message: str) -> None:
        with (msmarco / file).open("a") as stream:
            stream.write(f"{line}\n")
        with pytest.raises(DataError, match=message):
            read_msmarco(msmarco, "dev")

    def test_a_bad_line_of_candidates_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "top1000.dev"
        path.write_text("1\t5\tq\tp\n1\t4\tq\n")
        with pytest.raises(DataError, match=r"top1000\.dev:2: .* \(qid, pid, query, passage\), this one 3"):
            read_top1000(path)

    def test_real_passages_survive_the_published_files(self, unimoe_data: Path, tmp_path: Path) -> None:
        real = read_beir(unimoe_data / "msmarco-dev-positives", "test")
        assert any("\x85" in document.text for document in real.corpus.values())
        folder = write_msmarco(tmp_path / "real", real.sample_queries(2))
        judged = "".join(f"{q}\t0\t{d}\t{g}\n" for q, grades in real.qrels.items() for d, g in grades.items())
        (folder / "qrels.dev.small.tsv").write_text(judged)
        (folder / "queries.dev.small.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in real.queries.items()))
        assert content(read_msmarco(folder, "dev")) == content(real)
