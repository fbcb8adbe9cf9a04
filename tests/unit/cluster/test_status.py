"""What drivers write about their work, and what ``unimoe status`` makes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.scripts import call_script

import unimoe
from unimoe.cluster.board import SCOPE, SILENCE, Board, read_status
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


def shown(found: dict[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    """These values of each line."""
    return [tuple(one[key] for key in keys) for one in found["progress"]]


def test_the_rate_leaves_out_what_the_store_had(store: UnitStore) -> None:
    write(store, "a", line(done=700, found=500, running=3), seconds_ago=0)
    expected = {"items": 1000, "done": 700, "running": 3, "left": 300, "hours": 1.5, "failed": []}
    assert read_status(store)["progress"] == [{"what": "reranking scifact: mine", "state": "running", **expected}]


@pytest.mark.parametrize(
    ("values", "driver", "state"),
    [
        ({"seconds_ago": SILENCE - 1}, "running", "running"),
        ({"seconds_ago": SILENCE + 1}, "lost", "stopped"),
        ({"ended": True}, "ended", "stopped"),
        ({"seconds_ago": -5}, "running", "running"),  # the driver's clock is ahead
    ],
)
def test_a_silent_driver_does_not_run(store: UnitStore, values: dict[str, Any], driver: str, state: str) -> None:
    write(store, "a", line(done=400, running=4), **values)
    found, runs = read_status(store), driver == "running"
    assert (found["drivers"][0]["state"], found["running"]) == (driver, runs)
    assert shown(found, "state", "running", "left") == [(state, 4 * runs, 600)]
    assert (found["progress"][0]["hours"] is not None) == runs


def test_a_driver_that_began_again_counts_in_place_of_the_lost_one(store: UnitStore) -> None:
    write(store, "1", line(done=900, failed=["set aside"]), line("alone", done=5), seconds_ago=500)
    write(store, "2", line(done=20))
    found = read_status(store)
    assert shown(found, "what", "state", "done") == [
        ("alone", "stopped", 5),
        ("reranking scifact: mine", "running", 20),
    ]
    assert not found["failed"]
    assert [driver["name"] for driver in found["drivers"]] == ["2", "1"]


def test_a_board_of_another_version_and_a_folder_without_any_are_named(store: UnitStore) -> None:
    with pytest.raises(UsageError, match=r"not a store, or not yet .*give the folder or URL that --store named"):
        read_status(store)
    write(store, "1", {"what": "x", "speed": 9})
    with pytest.raises(DataError, match=r"drivers/1\.json: unknown fields .*use the version of unimoe"):
        read_status(store)


def test_a_driver_writes_what_is_read_and_goes_on_where_the_store_is_out_of_reach(tmp_path: Path) -> None:
    store = UnitStore(str(tmp_path / "store"))
    board = Board(store, lambda: 3, lambda: {"one": 2})
    one = board.line("one", 10)
    one.done, one.found = 10, 4
    with board.noted("good", 3):
        pass
    with pytest.raises(DataError), board.noted("bad", None):
        raise DataError("no such file")
    board.close()
    found = read_status(store)
    assert [(driver["state"], driver["workers"]) for driver in found["drivers"]] == [("ended", 3)]
    assert shown(found, "what", "state", "items", "done", "left", "failed") == [
        ("bad", "failed", None, 0, None, ["no such file"]),
        ("good", "done", 3, 0, 0, []),
        ("one", "stopped", 10, 10, 0, []),
    ]
    (tmp_path / "file").write_text("not a folder", "utf-8")
    lost = Board(UnitStore(str(tmp_path / "file")), lambda: 1)
    lost.line("one").done = 1
    lost.close()
    assert (tmp_path / "file").read_text("utf-8") == "not a folder"


def test_a_failure_is_exit_code_4_and_named(store: UnitStore) -> None:
    reason = "shard 7: set aside, 3 worker processes died under it"
    write(store, "a", line(done=700, found=500, running=3), line("bad", failed=[reason]))
    done, as_json = call_script(MAIN, "status", store.url), call_script(MAIN, "status", store.url, "--json")
    for one in (done, as_json):
        assert (one.returncode, one.stderr.splitlines()) == (4, ["error: failed, wholly or in part: bad"])
    assert json.loads(as_json.stdout) == read_status(store)
    rows = [row.split() for row in done.stdout.splitlines()]
    assert ["reranking", "scifact:", "mine", "running", "700", "of", "1,000", "3", "0", "300", "1.5"] in rows
    assert ["a", "head", "running", "4", "2", "s", "ago"] in rows
    assert f"bad: {reason}" in done.stdout


def test_watching_ends_with_the_last_driver(store: UnitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "a", line(done=100))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        write(store, "a", line(done=100 + 450 * len(looks)), ended=len(looks) == 2)

    monkeypatch.setattr(time, "sleep", sleep)
    done = call_script(MAIN, "status", store.url, "--watch", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(row)["progress"][0]["done"] for row in done.stdout.splitlines()] == [100, 550, 1000]


@pytest.mark.parametrize("url", ["ftp://me:pw-secret@127.0.0.1:9/folder", "nowhere://me:pw-secret@host/folder"])
def test_a_store_that_cannot_be_reached_is_one_line_without_its_password(url: str) -> None:
    done = call_script(MAIN, "status", url)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "pw-secret" in done.stderr) == (2, False)
    assert f"{url.partition(':')[0]}://***@" in line
