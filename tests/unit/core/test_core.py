"""Files whole or not at all, TREC files read strictly and ordered as trec_eval does, and errors in one line."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

from unimoe.core import console, io
from unimoe.core.console import Steps, run
from unimoe.core.errors import DataError, MissingPartError, UnimoeError, UsageError, system_refusal
from unimoe.core.io import append_jsonl, atomic_dir, ensure_dir, write_text
from unimoe.core.registry import Registry
from unimoe.core.trec import write_qrels, write_run
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run


class Interrupted(BaseException):
    """Stands for Ctrl-C: no ``Exception``, so that no handler for errors swallows it."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def python(code: str, *arguments: Path) -> subprocess.Popen[str]:
    head = "import os, sys\nfrom pathlib import Path\nfrom unimoe.core.io import *\npath = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_folder_takes_the_place_of_the_old_one_whole_or_not_at_all(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with io.atomic_dir(tmp_path / "folder") as temporary:
            io.write_text(temporary / "deep" / name, name)
    io.write_text(tmp_path / "x.txt", "old")
    with pytest.raises(Interrupted), io.atomic_path(tmp_path / "x.txt") as temporary:  # noqa: PT012
        temporary.write_text("half of the n", encoding="utf-8")
        raise Interrupted
    with pytest.raises(Interrupted), io.atomic_dir(tmp_path / "folder") as temporary:  # noqa: PT012
        (temporary / "weights").write_text("ne", encoding="utf-8")
        raise Interrupted
    assert (tmp_path / "x.txt").read_text("utf-8") == "old"
    assert names(tmp_path / "folder" / "deep") == ["new"]
    assert names(tmp_path) == ["folder", "x.txt"]


def test_what_is_in_the_way_is_named_and_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this is a folder, and a file is to be written here"):
        io.write_text(tmp_path, "text")
    io.write_text(tmp_path / "file", "in the way")
    with (
        pytest.raises(UsageError, match="this is a file, and a folder is to be written here"),
        io.atomic_dir(tmp_path / "file"),
    ):
        pass
    with pytest.raises(UsageError, match="cannot create this folder"):
        io.write_text(tmp_path / "file" / "x", "text")
    assert (tmp_path / "file").read_text("utf-8") == "in the way"


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("with atomic_path(path / 'a') as a, atomic_dir(path / 'b'):\n a.touch()\n os.kill(os.getpid(), 9)", 3),
        # Between the old folder's renaming and the new one's.
        (
            "replace = Path.replace\n"
            "Path.replace = lambda a, b: os.kill(os.getpid(), 9) if a.suffix == '.tmp' else replace(a, b)\n"
            "with atomic_dir(path / 'b'): pass",
            2,
        ),
    ],
)
def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path, code: str, left: int) -> None:
    (tmp_path / "b").mkdir()
    assert python(code, tmp_path).wait() == -9
    assert len(names(tmp_path)) == left
    io.write_text(tmp_path / "a", "whole")
    with io.atomic_dir(tmp_path / "b"):
        pass
    assert names(tmp_path) == ["a", "b"]


def test_json_keeps_text_and_order_and_holds_no_number_that_json_lacks(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": "한국어\u2028"}
    io.write_json(tmp_path / "x.json", value)
    assert list(io.read_json(tmp_path / "x.json", dict[str, Any]).items()) == list(value.items())
    assert "한국어" in (tmp_path / "x.json").read_text("utf-8")
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            io.write_json(tmp_path / "x.json", {"score": number})


def test_hashes_tell_parts_apart_and_ignore_the_order_of_keys(tmp_path: Path) -> None:
    hashes = {io.hash_parts(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], [])}
    assert len(hashes) == 6
    (tmp_path / "x").write_bytes(b"abc")
    assert io.hash_file(tmp_path / "x") == "ba7816bf8f01cfea"  # SHA-256 of "abc", the first 16 hexadecimal digits
    assert io.hash_json({"a": 1, "b": [1, 2]}) == io.hash_json({"b": [1, 2], "a": 1})
    assert io.hash_json({"b": [1, 2]}) != io.hash_json({"b": [2, 1]})


def test_a_registry_that_cannot_be_filled_says_so_each_time() -> None:
    things = Registry[int]("thing", "unimoe.no_such_folder", "unimoe.none")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_folder"):
            things.checked("one")


def test_another_process_waits_for_a_lock_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with io.lock(path):
        child = python("print('ready', flush=True)\nwith lock(path): print(path.read_text())", path)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        path.write_text("written under the lock", encoding="utf-8")
    assert child.communicate()[0] == "written under the lock\n"


def test_a_second_process_in_a_folder_is_refused_in_one_line_but_not_on_another_part(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    with io.sole_use(tmp_path, "one part"), io.sole_use(tmp_path, "another part"), io.sole_use(folder):
        refused = python("with sole_use(path): pass", folder).communicate()[1]
    assert f"{folder}: another process works in this folder; wait for it, or choose another" in refused
    assert not folder.exists()  # nothing was written
    assert python("with sole_use(path): pass", folder).wait() == 0


def test_what_is_written_and_what_windows_makes_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.trec"
    write_run(path, {"q1": {"d1": 0.5, "d2": 1.5}, "q2": {"d1": 0.1}}, tag="bm25")
    assert path.read_bytes() == b"q1 Q0 d2 1 1.5 bm25\nq1 Q0 d1 2 0.5 bm25\nq2 Q0 d1 1 0.1 bm25\n"
    write_qrels(tmp_path / "q.txt", {"q1": {"d2": 2, "d1": 0}, "empty": {}, "q2": {"d1": -1}})
    assert (tmp_path / "q.txt").read_bytes() == b"q1 0 d2 2\nq1 0 d1 0\nq2 0 d1 -1\n"
    path.write_bytes(b"\xef\xbb\xbfq1\tQ0\td1\t1\t0.5\tt\r\n\r\nq1 Q0  d2 2 0.25 t\r\n\n")
    assert read_run(path) == {"q1": {"d1": 0.5, "d2": 0.25}}


def test_what_a_line_cannot_hold_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.trec"
    write_run(path, {"q": {"d": 1.0}}, tag="old")
    for query, document, score, tag, what in (
        ("q 1", "d1", 1.0, "t", "query id 'q 1' is empty or holds white space"),
        ("q1", "d\t1", 1.0, "t", r"document id 'd\\t1' is empty or holds white space"),
        ("q1", "d1", 1.0, "my run", "tag 'my run' is empty or holds white space"),
        ("q1", "d1", math.nan, "t", "query 'q1', document 'd1': the score is not finite"),
        ("q1", "d1", 1e300, "t", "the score is beyond float32"),
    ):
        with pytest.raises(DataError, match=what):
            write_run(path, {query: {document: score}}, tag)
    assert path.read_text(encoding="utf-8") == "q Q0 d 1 1.0 old\n"


def test_odd_lines_of_qrels_are_read_as_whole_grades(tmp_path: Path) -> None:
    for content, grades in (
        ("\nquery-id\tcorpus-id\tscore\nq1\td1\t2\n", {"d1": 2}),
        ("q1\ta document\t1\n", {"a document": 1}),
        ("q1 0 d1 -2\nq1 0 d2 1.0\n", {"d1": -2, "d2": 1}),
        ("q1 0 d1 1\nq1 0 d1 1\n", {"d1": 1}),
    ):
        (tmp_path / "some.tsv").write_text(content)
        found = read_qrels(tmp_path / "some.tsv")
        assert found == {"q1": grades}
        assert all(type(grade) is int for grade in found["q1"].values())


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("/a/path[red]:\n no such file"), 2, "/a/path[red]: no such file\n"),
        (MissingPartError("done, without it"), 4, "done, without it\n"),
        (UnimoeError("a" * 9000 + "end"), 3, "aaa"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 3, f"{'x' * 300}: File name too long; check"),
        (RuntimeError("I/O error: No space left on device"), 3, "no room is left on the disk"),
        (OSError(errno.EMFILE, "x"), 3, "this process may open no more files"),
        (MemoryError("of a tensor"), 3, "not enough memory (of a tensor); lower"),
        (MemoryError(), 3, "not enough memory; lower"),
        (
            RuntimeError("you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)"),
            3,
            "not enough memory (",
        ),
        (OSError(errno.ENOMEM, "x"), 3, "not enough memory; lower"),
        (OSError("18289 requested and 496 written"), 3, "no room is left on the disk, or no inode"),  # NumPy's
        (OSError(errno.EROFS, "x", "out/a"), 3, "out/a: nothing can be written on this file system; choose another"),
        (OSError(errno.EIO, "x", "out/a"), 3, "out/a: the disk or device failed; check it"),
    ],
    ids=str,
)
def test_what_the_user_or_the_system_can_fix_is_one_line_and_an_exit_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["command"])
    app = typer.Typer()

    @app.command()
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as left:
        run(app)
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (code, "")
    assert said.err.startswith(f"error: {line}")
    assert said.err.count("\n") == 1
    assert len(said.err) < 4100


def test_a_long_unit_says_how_far_it_is_where_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SECONDS_OF_SILENCE", 0.05)
    with Steps(1).step("infonce: 3 seeds", 1500) as step:
        step.advance(200)
        step.advance(100)
        time.sleep(0.5)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[1/1] infonce: 3 seeds: 300 of 1,500 (")
    assert said[-1].startswith("[1/1] infonce: 3 seeds: done (")


def _write_whole(folder: Path) -> None:
    with atomic_dir(folder / "whole") as temporary:
        (temporary / "x").touch()


def _append(folder: Path) -> None:
    append_jsonl(folder / "log.jsonl", {})


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EMFILE", "ENFILE"])
@pytest.mark.parametrize(
    ("place", "write", "named"),
    [
        ("pathlib.Path.mkdir", lambda folder: ensure_dir(folder / "a" / "b"), "a/b"),
        ("pathlib.Path.write_bytes", lambda folder: write_text(folder / "a.txt", "x"), "a.txt"),
        ("unimoe.core.io._sync", lambda folder: write_text(folder / "a.txt", "x"), "a.txt"),
        ("unimoe.core.io._sync", _write_whole, "whole"),
        ("pathlib.Path.open", _append, "log.jsonl"),
    ],
    ids=["folder", "file", "sync", "whole folder", "log"],
)
def test_what_the_system_refuses_of_a_write_names_the_file_whatever_it_is(
    code: str, place: str, write: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    number = getattr(errno, code)
    with patch(place, side_effect=OSError(number, os.strerror(number))), pytest.raises(OSError, match=named) as refused:
        write(tmp_path)
    line = system_refusal(refused.value)
    assert line is not None
    assert line.exit_code == 3
    assert re.fullmatch(rf"{re.escape(str(tmp_path / named))}: [^;]+; [^;]+", str(line))
    assert not list(tmp_path.iterdir()), "nothing is left behind"
