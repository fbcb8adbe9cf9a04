"""TREC files are read strictly and ordered as trec_eval orders them."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from unimoe.core.errors import DataError
from unimoe.core.trec import head, ranked, read_qrels, read_run, write_qrels, write_run


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        ({"d1": 1.0, "d3": 1.0, "d2": 1.0, "d0": 2.0}, ["d0", "d3", "d2", "d1"]),  # ties break by id descending
        ({"a": 1 + 1e-9, "b": 1.0}, ["b", "a"]),  # equal in float32
        ({"a": 1 + 1e-6, "b": 1.0}, ["a", "b"]),
        ({"a": 0.0, "b": -0.0}, ["b", "a"]),
    ],
)
def test_documents_rank_as_in_trec_eval(scores: dict[str, float], order: list[str]) -> None:
    assert ranked(scores) == order
    for depth in (1, 2, 9):
        assert list(head(scores, depth).items()) == [(key, scores[key]) for key in order[:depth]]


class TestRun:
    def test_what_is_written(self, tmp_path: Path) -> None:
        write_run(tmp_path / "x.trec", {"q1": {"d1": 0.5, "d2": 1.5}, "q2": {"d1": 0.1}}, tag="bm25")
        assert (tmp_path / "x.trec").read_bytes() == (
            b"q1 Q0 d2 1 1.5 bm25\nq1 Q0 d1 2 0.5 bm25\nq2 Q0 d1 1 0.1 bm25\n"
        )

    def test_windows_line_ends_byte_order_mark_tabs_and_empty_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "x.trec"
        path.write_bytes(b"\xef\xbb\xbfq1\tQ0\td1\t1\t0.5\tt\r\n\r\nq1 Q0  d2 2 0.25 t\r\n\n")
        assert read_run(path) == {"q1": {"d1": 0.5, "d2": 0.25}}

    @pytest.mark.parametrize(
        ("query", "document", "score", "tag", "what"),
        [
            ("q 1", "d1", 1.0, "t", "query id 'q 1' is empty or holds white space"),
            ("q1", "d\t1", 1.0, "t", r"document id 'd\\t1' is empty or holds white space"),
            ("q1", "", 1.0, "t", "document id '' is empty or holds white space"),
            ("q1", "d1", 1.0, "my run", "tag 'my run' is empty or holds white space"),
            ("q1", "d1", math.nan, "t", "query 'q1', document 'd1': the score is not finite"),
            ("q1", "d1", 1e300, "t", "the score is beyond float32"),
        ],
    )
    def test_what_a_line_cannot_hold_is_not_written(
        self, tmp_path: Path, query: str, document: str, score: float, tag: str, what: str
    ) -> None:
        path = tmp_path / "x.trec"
        write_run(path, {"q": {"d": 1.0}}, tag="old")
        with pytest.raises(DataError, match=what):
            write_run(path, {query: {document: score}}, tag)
        assert path.read_text(encoding="utf-8") == "q Q0 d 1 1.0 old\n"


class TestQrels:
    @pytest.mark.parametrize(
        ("content", "grades"),
        [
            ("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n", {"d1": 2, "d2": 0}),
            ("q1 0 d1 2\nq1 0 d2 0\n", {"d1": 2, "d2": 0}),
            ("q1\ta document\t1\n", {"a document": 1}),
            ("q1 0 d1 -2\nq1 0 d2 1.0\n", {"d1": -2, "d2": 1}),
            ("q1 0 d1 1\nq1 0 d1 1\n", {"d1": 1}),
        ],
    )
    def test_both_layouts(self, tmp_path: Path, content: str, grades: dict[str, int]) -> None:
        (tmp_path / "some.tsv").write_text(content)
        found = read_qrels(tmp_path / "some.tsv")
        assert found == {"q1": grades}
        assert all(type(grade) is int for grade in found["q1"].values())

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (gzip.compress(b"q1 0 d1 1\n" * 99, mtime=0), r"packed by gzip; end its name in \.gz"),
            (b"q1 0\td1\t1\n", r":1: separated by tabs and by spaces; use one of them in all lines"),
            (b"q1\tQ0\td1 1\n", r":1: separated by tabs and by spaces; use one of them in all lines"),
        ],
    )
    def test_a_doubtful_file_is_refused(self, tmp_path: Path, content: bytes, words: str) -> None:
        (tmp_path / "some.tsv").write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_qrels(tmp_path / "some.tsv")

    def test_what_is_written(self, tmp_path: Path) -> None:
        write_qrels(tmp_path / "q.txt", {"q1": {"d2": 2, "d1": 0}, "empty": {}, "q2": {"d1": -1}})
        assert (tmp_path / "q.txt").read_bytes() == b"q1 0 d2 2\nq1 0 d1 0\nq2 0 d1 -1\n"
