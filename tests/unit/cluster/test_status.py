"""What drivers write about their work, and what ``unimoe status`` makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scripts import call_script

import unimoe
from unimoe.cluster import board as boards
from unimoe.cluster.board import SCOPE, SILENCE, Board, Progress, read_status
from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError, UsageError

MAIN = str(Path(unimoe.__file__).with_name("__main__.py"))
NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnitStore:
    monkeypatch.setattr(time, "time", lambda: NOW)
    return UnitStore(str(tmp_path / "store"))


def line(what: str = "reranking scifact: mine", **values: Any) -> dict[str, Any]:
    full = {"what": what, "items": 1000, "done": 0, "found": 0, "running": 0, "failed": []}
    return full | {"state": "running", "begun": NOW - 3600} | values


def write(store: UnitStore, name: str, *lines: dict[str, Any], seconds_ago: float = 2, **values: Any) -> None:
    content = {"machine": "head", "started": NOW - 3700, "updated": NOW - seconds_ago, "ended": False, "workers": 4}
    store.write_json(SCOPE, f"{name}.json", {**content, "lines": list(lines), **values})


def only(store: UnitStore) -> Progress:
    (progress,) = read_status(store).progress
    return progress


class TestProgress:
    def test_the_rate_leaves_out_what_the_store_had(self, store: UnitStore) -> None:
        write(store, "a", line(done=700, found=500, running=3), seconds_ago=0)
        assert only(store) == Progress("reranking scifact: mine", "running", 1000, 700, 3, 300, 1.5, [])

    @pytest.mark.parametrize(
        ("values", "driver", "state"),
        [
            ({"seconds_ago": SILENCE - 1}, "running", "running"),
            ({"seconds_ago": SILENCE + 1}, "lost", "stopped"),
            ({"ended": True}, "ended", "stopped"),
            ({"ended": True, "seconds_ago": 9e5}, "ended", "stopped"),
            ({"seconds_ago": -5}, "running", "running"),  # the driver's clock is ahead
        ],
    )
    def test_a_silent_driver_does_not_run(
        self, store: UnitStore, values: dict[str, Any], driver: str, state: str
    ) -> None:
        write(store, "a", line(done=400, running=4), **values)
        found = read_status(store)
        assert (found.drivers[0].state, found.progress[0].state) == (driver, state)
        assert found.runs == (driver == "running")
        assert found.progress[0].running == (4 if found.runs else 0)
        assert (found.progress[0].hours is not None) == found.runs
        assert found.progress[0].left == 600

    def test_failures_are_kept_with_their_reasons(self, store: UnitStore) -> None:
        write(store, "a", line(done=400, failed=["shard 7: set aside"]), line("two", state="failed"), line("three"))
        found = read_status(store)
        assert found.failed
        assert [(one.what, one.state, list(one.failed)) for one in found.progress] == [
            ("reranking scifact: mine", "running", ["shard 7: set aside"]),
            ("three", "running", []),
            ("two", "failed", []),
        ]

    def test_a_driver_that_began_again_counts_in_place_of_the_lost_one(self, store: UnitStore) -> None:
        write(store, "1", line(done=900, failed=["set aside"]), line("alone", done=5), seconds_ago=500)
        write(store, "2", line(done=20))
        found = read_status(store)
        assert [(one.what, one.state, one.done) for one in found.progress] == [
            ("alone", "stopped", 5),
            ("reranking scifact: mine", "running", 20),
        ]
        assert not found.failed
        assert [driver.name for driver in found.drivers] == ["2", "1"]

    def test_a_board_of_another_version_is_named(self, store: UnitStore) -> None:
        write(store, "1", {"what": "x", "speed": 9})
        with pytest.raises(DataError, match=r"drivers/1\.json: unknown fields .*use the version of unimoe"):
            read_status(store)

    def test_a_folder_without_drivers_is_no_store(self, store: UnitStore) -> None:
        with pytest.raises(UsageError, match=r"not a store, or not yet .*give the folder or URL that --store named"):
            read_status(store)


class TestBoard:
    def test_a_driver_writes_what_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(boards, "_EVERY", 0.01)
        store = UnitStore(str(tmp_path))
        board = Board(store, lambda: 3, lambda: {"one": 2})
        one, two = board.line("one", 10), board.line("two")
        two.failed.append("no such file")
        two.state = "failed"
        one.done = 4
        assert board.line("one") is one
        _until(lambda: any(progress.done == 4 for progress in _progress(store)))
        found = read_status(store)
        assert [(driver.state, driver.workers) for driver in found.drivers] == [("running", 3)]
        assert [(got.what, got.state, got.items, got.running) for got in found.progress] == [
            ("one", "running", 10, 2),
            ("two", "failed", None, 0),
        ]
        one.done, one.state = 10, "done"
        board.close()
        found = read_status(store)
        assert [driver.state for driver in found.drivers] == ["ended"]
        assert [(got.state, got.left, got.running) for got in found.progress] == [("done", 0, 0), ("failed", None, 0)]

    def test_it_notes_how_an_evaluation_ends(self, tmp_path: Path) -> None:
        board = Board(UnitStore(str(tmp_path)), lambda: 1)
        with board.noted("good", 3):
            pass
        for _ in range(2):
            with pytest.raises(DataError), board.noted("bad", None):
                raise DataError("no such file")
        board.close()
        found = read_status(UnitStore(str(tmp_path)))
        assert [(one.what, one.state, one.items, one.failed) for one in found.progress] == [
            ("bad", "failed", None, ["no such file"]),
            ("good", "done", 3, []),
        ]

    def test_a_store_out_of_reach_does_not_end_the_driver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(boards, "_EVERY", 0.01)
        (tmp_path / "file").write_text("not a folder", "utf-8")
        board = Board(UnitStore(str(tmp_path / "file")), lambda: 1)
        board.line("one").done = 1
        board.close()
        assert (tmp_path / "file").read_text("utf-8") == "not a folder"


def _progress(store: UnitStore) -> list[Progress]:
    try:
        return list(read_status(store).progress)
    except UsageError:
        return []


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestCommand:
    def test_all_is_well(self, store: UnitStore) -> None:
        write(store, "a", line(done=700, found=500, running=3), line("two", done=1000, state="done"))
        done = call_script(MAIN, "status", store.url)
        assert done.returncode == 0, done.stderr
        rows = [row.split() for row in done.stdout.splitlines()]
        assert ["reranking", "scifact:", "mine", "running", "700", "of", "1,000", "3", "0", "300", "1.5"] in rows
        assert ["two", "done", "1,000", "of", "1,000", "0", "0", "0"] in rows
        assert ["a", "head", "running", "4", "2", "s", "ago"] in rows

    @pytest.mark.parametrize("as_json", [[], ["--json"]])
    def test_a_failure_is_exit_code_4_and_named(self, store: UnitStore, as_json: list[str]) -> None:
        write(store, "a", line("good"), line("bad", failed=["shard 7: set aside, 3 worker processes died under it"]))
        done = call_script(MAIN, "status", store.url, *as_json)
        assert done.returncode == 4
        assert "shard 7: set aside" in done.stdout
        assert done.stderr.splitlines() == ["error: failed, wholly or in part: bad"]

    @pytest.mark.parametrize("as_json", [[], ["--json"]])
    def test_watching_ends_with_the_last_driver(
        self, store: UnitStore, monkeypatch: pytest.MonkeyPatch, as_json: list[str]
    ) -> None:
        write(store, "a", line(done=100))
        looks: list[float] = []

        def sleep(seconds: float) -> None:
            looks.append(seconds)
            write(store, "a", line(done=100 + 450 * len(looks)), ended=len(looks) == 2)

        monkeypatch.setattr(time, "sleep", sleep)
        done = call_script(MAIN, "status", store.url, "--watch", *as_json)
        assert done.returncode == 0, done.stderr
        assert len(looks) == 2
        if as_json:
            found = [json.loads(row)["progress"][0]["done"] for row in done.stdout.splitlines()]
            assert found == [100, 550, 1000]
        else:
            assert "1,000 of 1,000" in done.stdout

    def test_it_answers_without_torch(self) -> None:
        code = "import sys, unimoe.cli.status, unimoe.cluster.board; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "url",
    [
        "ftp://me:pw-secret@127.0.0.1:9/folder",
        "nowhere://me:pw-secret@host/folder",
        "github://me:pw-secret@host/folder",
        "sftp://me:pw-secret@127.0.0.1:9/folder",
    ],
)
def test_a_store_that_cannot_be_reached_is_one_line_without_its_password(url: str) -> None:
    done = call_script(MAIN, "status", url)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"{url.partition(':')[0]}://***@" in line
    assert "pw-secret" not in done.stderr
