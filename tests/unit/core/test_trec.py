"""TREC files are read strictly and ordered as trec_eval orders them."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from unimoe.core.errors import DataError
from unimoe.core.trec import head, ranked, read_qrels, read_run, write_qrels, write_run


def file_of(tmp_path: Path, content: bytes | str, name: str = "some.tsv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class TestOrder:
    def test_ties_break_by_id_descending(self) -> None:
        assert ranked({"d1": 1.0, "d3": 1.0, "d2": 1.0, "d0": 2.0}) == ["d0", "d3", "d2", "d1"]

    def test_scores_are_compared_as_float32(self) -> None:
        # 1 + 1e-9 is 1 in float32, so the ids decide; 1 + 1e-6 is not.
        assert ranked({"a": 1 + 1e-9, "b": 1.0}) == ["b", "a"]
        assert ranked({"a": 1 + 1e-6, "b": 1.0}) == ["a", "b"]

    def test_zero_has_no_sign(self) -> None:
        assert ranked({"a": 0.0, "b": -0.0}) == ["b", "a"]

    @pytest.mark.parametrize(("depth", "kept"), [(1, ["c"]), (2, ["c", "b"]), (9, ["c", "b", "a"])])
    def test_the_head_is_the_first_of_the_ranking_with_its_scores(self, depth: int, kept: list[str]) -> None:
        scores = {"a": 1.0, "b": 1.0, "c": 2.0}
        assert list(head(scores, depth).items()) == [(document_id, scores[document_id]) for document_id in kept]


class TestRun:
    def test_what_is_written(self, tmp_path: Path) -> None:
        write_run(tmp_path / "x.trec", {"q1": {"d1": 0.5, "d2": 1.5}, "q2": {"d1": 0.1}}, tag="bm25")
        assert (tmp_path / "x.trec").read_bytes() == (
            b"q1 Q0 d2 1 1.5 bm25\nq1 Q0 d1 2 0.5 bm25\nq2 Q0 d1 1 0.1 bm25\n"
        )

    def test_windows_line_ends_byte_order_mark_tabs_and_empty_lines(self, tmp_path: Path) -> None:
        path = file_of(tmp_path, b"\xef\xbb\xbfq1\tQ0\td1\t1\t0.5\tt\r\n\r\nq1 Q0  d2 2 0.25 t\r\n\n")
        assert read_run(path) == {"q1": {"d1": 0.5, "d2": 0.25}}

    @pytest.mark.parametrize(
        ("query", "document", "tag", "what"),
        [
            ("q 1", "d1", "t", "query id 'q 1'"),
            ("", "d1", "t", "query id ''"),
            ("q1", "d\t1", "t", r"document id 'd\\t1'"),
            ("q1", "d1\n", "t", r"document id 'd1\\n'"),
            ("q1", "", "t", "document id ''"),
            ("q1", "d1", "my run", "tag 'my run'"),
        ],
    )
    def test_what_a_line_cannot_hold_is_not_written(
        self, tmp_path: Path, query: str, document: str, tag: str, what: str
    ) -> None:
        path = tmp_path / "x.trec"
        write_run(path, {"q": {"d": 1.0}}, tag="old")
        with pytest.raises(DataError, match=f"{what} is empty or holds white space"):
            write_run(path, {query: {document: 1.0}}, tag)
        assert path.read_text(encoding="utf-8") == "q Q0 d 1 1.0 old\n"

    @pytest.mark.parametrize("score", [math.nan, math.inf])
    def test_a_score_that_is_no_number_is_not_written(self, tmp_path: Path, score: float) -> None:
        with pytest.raises(DataError, match="query 'q', document 'd': the score is not finite"):
            write_run(tmp_path / "x.trec", {"q": {"d": score}}, tag="t")
        assert not (tmp_path / "x.trec").exists()


class TestQrels:
    def test_both_layouts(self, tmp_path: Path) -> None:
        beir = file_of(tmp_path, "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n", "beir.tsv")
        trec = file_of(tmp_path, "q1 0 d1 2\nq1 0 d2 0\n", "trec.txt")
        assert read_qrels(beir) == read_qrels(trec) == {"q1": {"d1": 2, "d2": 0}}

    def test_a_packed_file_whose_name_does_not_say_so_is_named_as_such(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"packed by gzip; end its name in \.gz"):
            read_qrels(file_of(tmp_path, gzip.compress(b"q1 0 d1 1\n" * 99, mtime=0)))

    @pytest.mark.parametrize("line", ["q1 0\td1\t1", "q1\t0 d1\t1", "q1\tQ0\td1 1"])
    def test_four_fields_by_tabs_and_spaces_are_not_three_with_a_space_in_an_id(
        self, tmp_path: Path, line: str
    ) -> None:
        with pytest.raises(DataError, match=r":1: separated by tabs and by spaces; use one of them in all lines"):
            read_qrels(file_of(tmp_path, f"{line}\n"))

    def test_negative_and_decimal_whole_grades(self, tmp_path: Path) -> None:
        grades = read_qrels(file_of(tmp_path, "q1 0 d1 -2\nq1 0 d2 1.0\n"))["q1"]
        assert grades == {"d1": -2, "d2": 1}
        assert all(type(grade) is int for grade in grades.values())

    def test_a_judgment_may_stand_twice(self, tmp_path: Path) -> None:
        assert read_qrels(file_of(tmp_path, "q1 0 d1 1\nq1 0 d1 1\n")) == {"q1": {"d1": 1}}

    def test_what_is_written(self, tmp_path: Path) -> None:
        write_qrels(tmp_path / "q.txt", {"q1": {"d2": 2, "d1": 0}, "empty": {}, "q2": {"d1": -1}})
        assert (tmp_path / "q.txt").read_bytes() == b"q1 0 d2 2\nq1 0 d1 0\nq2 0 d1 -1\n"
