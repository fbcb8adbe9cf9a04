"""Files are written whole or not at all, and hashes tell contents apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unimoe.core import io
from unimoe.core.errors import DataError, UsageError


class Counts(io.Strict):
    a: int


class Interrupted(BaseException):
    """Stands for Ctrl-C: no ``Exception``, so that no handler for errors swallows it."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def python(code: str, *arguments: Path) -> subprocess.Popen[str]:
    head = "import os, sys\nfrom pathlib import Path\nfrom unimoe.core.io import *\npath = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class TestAtomic:
    def test_a_file_and_its_folders_appear(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "x.txt"
        io.write_text(path, "one\ntwo\n")
        assert path.read_bytes() == b"one\ntwo\n"
        assert names(path.parent) == ["x.txt"]

    def test_a_folder_takes_the_place_of_the_old_one_whole(self, tmp_path: Path) -> None:
        for name in ("old", "new"):
            with io.atomic_dir(tmp_path / "checkpoint") as temporary:
                io.write_text(temporary / "deep" / name, name)
        assert names(tmp_path / "checkpoint" / "deep") == ["new"]
        assert names(tmp_path) == ["checkpoint"]

    def test_the_old_content_survives_an_interruption_in_the_middle(self, tmp_path: Path) -> None:
        io.write_text(tmp_path / "x.txt", "old")
        io.write_text(tmp_path / "folder" / "weights", "old")
        with pytest.raises(Interrupted), io.atomic_path(tmp_path / "x.txt") as temporary:  # noqa: PT012
            temporary.write_text("half of the n", encoding="utf-8")
            raise Interrupted
        with pytest.raises(Interrupted), io.atomic_dir(tmp_path / "folder") as temporary:  # noqa: PT012
            (temporary / "weights").write_text("ne", encoding="utf-8")
            raise Interrupted
        assert (tmp_path / "x.txt").read_text("utf-8") == (tmp_path / "folder" / "weights").read_text("utf-8") == "old"
        assert names(tmp_path) == ["folder", "x.txt"]

    def test_what_is_in_the_way_is_named_and_stays(self, tmp_path: Path) -> None:
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
    def test_what_a_killed_process_left_goes_with_the_next_write(self, tmp_path: Path, code: str, left: int) -> None:
        (tmp_path / "b").mkdir()
        assert python(code, tmp_path).wait() == -9
        assert len(names(tmp_path)) == left
        io.write_text(tmp_path / "a", "whole")
        with io.atomic_dir(tmp_path / "b"):
            pass
        assert names(tmp_path) == ["a", "b"]


class TestJson:
    def test_round_trip_keeps_text_and_order(self, tmp_path: Path) -> None:
        value = {"b": [1, 2.5, None, True], "a": "한국어\u2028"}
        io.write_json(tmp_path / "x.json", value)
        assert list(io.read_json(tmp_path / "x.json", dict[str, Any]).items()) == list(value.items())
        assert "한국어" in (tmp_path / "x.json").read_text("utf-8")
        for number in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="not JSON compliant"):
                io.write_json(tmp_path / "x.json", {"score": number})

    @pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe", b"[1]", b'{"a": "1"}', b"[" * 100_000])
    def test_a_broken_file_says_what_to_do(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.json").write_bytes(content)
        words = r"x\.json: is damaged or of another version \(.*\); delete it, and run again"
        with pytest.raises(DataError, match=words):
            io.read_json(tmp_path / "x.json", Counts)

    def test_an_absent_file_and_a_folder_are_data_errors(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"x\.json: no such file"):
            io.read_json(tmp_path / "x.json", Counts)
        with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
            io.read_json(tmp_path, Counts)


def test_hashes_tell_parts_apart_and_ignore_the_order_of_keys(tmp_path: Path) -> None:
    hashes = {io.hash_parts(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], [])}
    assert len(hashes) == 6
    (tmp_path / "x").write_bytes(b"abc")
    assert io.hash_file(tmp_path / "x") == "ba7816bf8f01cfea"  # SHA-256 of "abc", the first 16 hexadecimal digits
    assert io.hash_json({"a": 1, "b": [1, 2]}) == io.hash_json({"b": [1, 2], "a": 1})
    assert io.hash_json({"b": [1, 2]}) != io.hash_json({"b": [2, 1]})


def test_files_are_found_in_order_and_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("b/seed_1/x.json", "a/seed_0/x.json", "a/other/x.json", "a/seed_0/y.json"):
        io.write_text(tmp_path / name, "")
    found = [str(path.relative_to(tmp_path)) for path in io.find_files(tmp_path, "*/seed_*/x*")]
    assert found == ["a/seed_0/x.json", "b/seed_1/x.json"]


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
