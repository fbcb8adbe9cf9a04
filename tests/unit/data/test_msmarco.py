"""MS MARCO's published files become a collection, or its candidates do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sources import SMALL, content, write_msmarco

from unimoe.core.errors import DataError, UsageError
from unimoe.data.sources.beir_layout import read_beir
from unimoe.data.sources.msmarco import is_msmarco_folder, read_msmarco, read_top1000


@pytest.fixture(params=[False, True], ids=["plain", "gz"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write_msmarco(tmp_path / "msmarco", SMALL, compress=request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_msmarco(tmp_path / "msmarco", SMALL)


def remove(folder: Path, *names: str) -> None:
    for name in names:
        for path in folder.glob(f"{name}*"):
            path.unlink()


@pytest.mark.parametrize("absent", [("collection.tsv",), ("collection.tsv", "queries.dev.small.tsv")])
def test_candidates_stand_in_for_the_corpus_and_the_collection_says_so(folder: Path, absent: tuple[str, ...]) -> None:
    remove(folder, *absent)
    assert is_msmarco_folder(folder)
    found = read_msmarco(folder, "dev")
    assert content(found) == content(SMALL)
    assert found.candidates_only
    assert found.sample_queries(1).candidates_only
    assert found.oddities == ""


@pytest.mark.parametrize("split", ["test", "dve", "train"])
def test_only_dev_is_there(plain: Path, split: str) -> None:
    with pytest.raises(UsageError, match=rf"msmarco: no split '{split}'.*; there is dev"):
        read_msmarco(plain, split)


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        (["qrels.dev.small.tsv"], r"no qrels\.dev\.small\.tsv; MS MARCO needs .* or with top1000\.dev"),
        (["top1000.dev", "collection.tsv"], r"no collection\.tsv; MS MARCO needs"),
        (
            ["top1000.dev", "queries.dev.small.tsv", "qrels"],
            r"no qrels\.dev\.small\.tsv and no queries\.dev\.small\.tsv",
        ),
    ],
)
def test_what_is_missing_is_named(plain: Path, absent: list[str], message: str) -> None:
    remove(plain, *absent)
    assert not is_msmarco_folder(plain)
    with pytest.raises(DataError, match=message):
        read_msmarco(plain, "dev")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("collection.tsv", "77", r"collection\.tsv:4: a line has 2 fields parted by tabs \(pid, passage\), this one 1"),
        ("collection.tsv", "77\ta\tb", r"collection\.tsv:4: a line has 2 .* this one 3; fix it, or fetch the file"),
        ("queries.dev.small.tsv", "77 a query", r"queries\.dev\.small\.tsv:3: a line has 2 fields"),
        ("qrels.dev.small.tsv", "101\t0\t7\tyes", r"qrels\.dev\.small\.tsv:4: grade 'yes' is not a number"),
        ("qrels.dev.small.tsv", "300\t0\t7\t1", "query '300' is judged in split 'dev' but is not among the queries"),
        ("collection.tsv", "7 7\ttext", "id '7 7' is empty or holds white space"),
    ],
)
def test_a_bad_line_is_named(plain: Path, file: str, line: str, message: str) -> None:
    with (plain / file).open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(DataError, match=message) as caught:
        read_msmarco(plain, "dev")
    assert "\n" not in str(caught.value)


class TestTop1000:
    def test_keeps_the_order_of_the_file(self, folder: Path) -> None:
        (path,) = folder.glob("top1000.dev*")
        assert read_top1000(path) == {"101": ["9", "12", "7"], "205": ["9", "12", "7"]}

    def test_a_bad_line_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "top1000.dev"
        path.write_text("1\t5\tq\tp\n1\t4\tq\n")
        with pytest.raises(DataError, match=r"top1000\.dev:2: .* \(qid, pid, query, passage\), this one 3"):
            read_top1000(path)
        with pytest.raises(DataError, match="absent: no such file"):
            read_top1000(tmp_path / "absent")


def test_real_passages_survive_the_published_files(unimoe_data: Path, tmp_path: Path) -> None:
    real = read_beir(unimoe_data / "msmarco-dev-positives", "test")
    assert any("\x85" in document.text for document in real.corpus.values())
    write_msmarco(tmp_path / "msmarco", real.sample_queries(2))
    judged = "".join(f"{q}\t0\t{d}\t{g}\n" for q, grades in real.qrels.items() for d, g in grades.items())
    (tmp_path / "msmarco" / "qrels.dev.small.tsv").write_text(judged)
    (tmp_path / "msmarco" / "queries.dev.small.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in real.queries.items()))
    assert content(read_msmarco(tmp_path / "msmarco", "dev")) == content(real)
