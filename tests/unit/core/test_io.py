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


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A path no one can write, not even root: it lies below a regular file."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    return tmp_path / "file" / "folder" / "x.json"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestAtomicFile:
    def test_the_file_and_its_folders_appear(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "x.txt"
        io.write_text(path, "one\ntwo\n")
        assert path.read_bytes() == b"one\ntwo\n"
        assert names(path.parent) == ["x.txt"]

    def test_the_old_content_survives_an_interruption_in_the_middle(self, tmp_path: Path) -> None:
        path = tmp_path / "x.txt"
        io.write_text(path, "old")
        with pytest.raises(Interrupted), io.atomic_path(path) as temporary:  # noqa: PT012 - the block is the test
            temporary.write_text("half of the n", encoding="utf-8")
            assert path.read_text(encoding="utf-8") == "old"
            raise Interrupted
        assert path.read_text(encoding="utf-8") == "old"
        assert names(tmp_path) == ["x.txt"]

    def test_a_folder_in_the_way_is_a_usage_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="this is a folder, and a file is to be written here"):
            io.write_text(tmp_path, "text")


class TestAtomicFolder:
    def test_a_folder_takes_the_place_of_the_old_one_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        for name in ("old", "new"):
            with io.atomic_dir(path) as temporary:
                io.write_text(temporary / "deep" / name, name)
        assert names(path / "deep") == ["new"]
        assert names(tmp_path) == ["checkpoint"]

    def test_the_old_folder_survives_an_interruption(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        with io.atomic_dir(path) as temporary:
            (temporary / "weights").write_text("old", encoding="utf-8")
        with pytest.raises(Interrupted), io.atomic_dir(path) as temporary:  # noqa: PT012 - the block is the test
            (temporary / "weights").write_text("ne", encoding="utf-8")
            raise Interrupted
        assert (path / "weights").read_text(encoding="utf-8") == "old"
        assert names(tmp_path) == ["checkpoint"]

    def test_a_file_in_the_way_stays(self, tmp_path: Path, unwritable: Path) -> None:
        with (
            pytest.raises(UsageError, match="this is a file, and a folder is to be written here"),
            io.atomic_dir(tmp_path / "file"),
        ):
            pass
        assert (tmp_path / "file").read_text(encoding="utf-8") == "in the way"


class TestJson:
    def test_round_trip_keeps_text_and_order(self, tmp_path: Path) -> None:
        value = {"b": [1, 2.5, None, True], "a": "한국어\u2028"}
        io.write_json(tmp_path / "x.json", value)
        assert list(io.read_json(tmp_path / "x.json", dict[str, Any]).items()) == list(value.items())
        assert "한국어" in (tmp_path / "x.json").read_text(encoding="utf-8")

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_what_is_not_json_is_not_written(self, tmp_path: Path, number: float) -> None:
        io.write_json(tmp_path / "x.json", {"score": 1})
        with pytest.raises(ValueError, match="not JSON compliant"):
            io.write_json(tmp_path / "x.json", {"score": number})
        assert io.read_json(tmp_path / "x.json", dict[str, int]) == {"score": 1}

    @pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe", b"[1]", b'{"a": "1"}', b"[" * 100_000])
    def test_a_broken_file_says_what_to_do(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(
            DataError, match=r"x\.json: is damaged or of another version \(.*\); delete it, and run again"
        ):
            io.read_json(tmp_path / "x.json", Counts)

    def test_an_absent_file_and_a_folder_are_data_errors(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"x\.json: no such file"):
            io.read_json(tmp_path / "x.json", Counts)
        with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
            io.read_json(tmp_path, Counts)


class TestHashes:
    def test_parts_do_not_run_together(self) -> None:
        hashes = {io.hash_parts(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], [])}
        assert len(hashes) == 6

    def test_the_length_is_fixed(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"abc")
        # SHA-256 of "abc", the first 16 hexadecimal digits
        assert io.hash_file(tmp_path / "x") == "ba7816bf8f01cfea"
        assert len(io.hash_parts(["abc"])) == len(io.hash_json({})) == io.HASH_LENGTH

    def test_json_is_hashed_by_content_not_by_order(self) -> None:
        assert io.hash_json({"a": 1, "b": [1, 2]}) == io.hash_json({"b": [1, 2], "a": 1})
        assert io.hash_json({"b": [1, 2]}) != io.hash_json({"b": [2, 1]})


class TestLock:
    def test_another_process_waits_until_the_block_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        code = (
            "import sys; from pathlib import Path; from unimoe.core.io import lock\n"
            "print('ready', flush=True)\n"
            "with lock(Path(sys.argv[1])): print(Path(sys.argv[1]).read_text())"
        )
        with io.lock(path):
            child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            path.write_text("written under the lock", encoding="utf-8")
        assert child.communicate()[0] == "written under the lock\n"


class TestSoleUse:
    def test_a_second_process_is_refused_in_one_line(self, tmp_path: Path) -> None:
        folder = tmp_path / "outputs"
        code = (
            "import sys; from pathlib import Path; from unimoe.core.io import sole_use\n"
            "with sole_use(Path(sys.argv[1])): pass"
        )
        command = [sys.executable, "-c", code, str(folder)]
        with io.sole_use(folder):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert f"{folder}: another process works in this folder; wait for it, or choose another" in done.stderr
        assert subprocess.run(command, check=False).returncode == 0

    def test_others_may_work_on_other_parts(self, tmp_path: Path) -> None:
        refusal = pytest.raises(UsageError, match="another process works in this folder")
        with (
            io.sole_use(tmp_path, "scifact.json"),
            io.sole_use(tmp_path, "nfcorpus.json"),
            refusal,
            io.sole_use(tmp_path, "scifact.json"),
        ):
            pass


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\nfrom unimoe.core.io import atomic_dir, atomic_path\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "with atomic_path(path / 'a.json') as file, atomic_dir(path / 'b'):\n"
        "    file.touch()\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    io.write_text(tmp_path / "a.json", "whole")
    with io.atomic_dir(tmp_path / "b"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b"]


def test_a_process_killed_between_the_old_folder_and_the_new_leaves_none_behind(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\nfrom unimoe.core.io import atomic_dir\n"
        "path, replace = pathlib.Path(sys.argv[1]), pathlib.Path.replace\n"
        "pathlib.Path.replace = lambda a, b: os.kill(os.getpid(), 9) if a.suffix == '.tmp' else replace(a, b)\n"
        "with atomic_dir(path / 'b'):\n    pass"
    )
    (tmp_path / "b").mkdir()
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".old", ".tmp"]
    with io.atomic_dir(tmp_path / "b"):
        pass
    assert names(tmp_path) == ["b"]
