"""Finished units in a folder or a bucket, and what ``unimoe status`` makes of what drivers write there."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.scripts import assert_refused, call_unimoe, successful

from unimoe.cluster import units
from unimoe.cluster.board import SCOPE, SILENCE, Board, read_status
from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError, UsageError

BODY = b"\x00numbers\n" * 50


class Outage:
    """Time that passes while somebody sleeps, and what requests before a moment of it end with."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()
        self.until, self.error = 0.0, Exception()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """A bucket in memory, ``memory://bucket``, that is out of reach until a moment of its clock."""
    found = Outage()

    def request(answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if found.now < found.until:
                raise found.error
            return answer(*arguments, **options)

        return call

    for name in ("cat_file", "pipe_file", "ls"):
        monkeypatch.setattr(MemoryFileSystem, name, request(getattr(MemoryFileSystem, name)))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setattr(units, "time", found)
    return found


@pytest.mark.parametrize("seconds", [0.4, 500])
def test_a_store_that_comes_back_is_waited_for(outage: Outage, seconds: float) -> None:
    store = UnitStore("memory://bucket")
    outage.until = seconds
    store.write("units", "key", BODY)
    assert outage.now >= seconds
    outage.until = outage.now + seconds
    assert (store.read("units", "key"), store.keys("units")) == (BODY, {"key"})
    assert max(outage.pauses) <= 30


@pytest.mark.parametrize(
    ("error", "words", "seconds"),
    [
        (ConnectionError("no route"), r"^memory://bucket: out of reach for 600 s \(ConnectionError: no route\)", 600),
        (PermissionError("Access Denied"), "allow this user to read and write there", 0),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), "set the keys", 0),
        (OSError(errno.ENOSPC, "No space left"), r"No space left; free room there, or give another --store$", 0),
        (OSError(errno.EROFS, "Read-only"), r"Read-only; allow this user to read and write there, or give ano", 0),
        (NotADirectoryError(errno.ENOTDIR, "A file"), r"A file; make room for a folder there", 0),
    ],
)
def test_patience_ends_with_what_to_do_and_what_does_not_pass_is_not_waited_for(
    outage: Outage, error: Exception, words: str, seconds: float
) -> None:
    outage.until, outage.error = 1e9, error
    with pytest.raises(UsageError, match=words):
        UnitStore("memory://bucket").write("units", "key", BODY)
    assert seconds - 100 < outage.now <= seconds


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of an empty bucket on S3, as moto's server plays it."""
    moto = pytest.importorskip("moto.server", reason="needs moto's server: uv sync --extra cluster --group cluster")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: uv sync --extra cluster")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    settings = {
        "ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()), "ACCESS_KEY_ID": "test",
        "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("mine")
    yield "s3://mine/folder"
    files.rm("mine", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.parametrize("place", ["a folder", "S3"])
def test_what_is_written_is_read_by_others(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = str(tmp_path / "store") if place == "a folder" else request.getfixturevalue("bucket")
    store, other = UnitStore(url), UnitStore(f"{url}/")
    assert store.keys("units/a") == set()
    store.write("units/a", "key", BODY)
    store.write("units/a", "empty", b"")
    assert (other.read("units/a", "key"), other.read("units/a", "empty")) == (BODY, b"")
    assert other.read("units/a", "other") is None
    assert (other.keys("units/a"), other.keys("units/b")) == ({"key", "empty"}, set())
    store.write("units/a", "later", BODY)
    assert other.keys("units/a") == {"key", "empty", "later"}  # nothing is cached
    store.write("drivers", "one", b'{"half')
    with pytest.raises(DataError, match=r"drivers/one is damaged or of another version .*: delete it, and run again"):
        store.read_json("drivers", "one", dict)


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    store = UnitStore("s3://no-such-bucket/folder")
    assert (store.keys("units"), store.read("units", "key")) == (set(), None)
    with pytest.raises(UsageError, match=r"^s3://no-such-bucket/folder: .*make the bucket, or give another --store$"):
        store.write("units", "key", BODY)


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
    write(store, "1", line(done=900, failed=["set aside"]), line("one", done=5), seconds_ago=500)
    write(store, "2", line(done=20))
    found = read_status(store)
    assert shown(found, "what", "state", "done") == [("one", "stopped", 5), ("reranking scifact: mine", "running", 20)]
    assert not found["failed"]
    assert [driver["name"] for driver in found["drivers"]] == ["2", "1"]


def test_a_board_of_another_version_and_a_folder_without_any_are_named(store: UnitStore) -> None:
    with pytest.raises(UsageError, match=r"not a store, or not yet .*an experiment's folder, or what --store named"):
        read_status(store)
    write(store, "1", {"what": "x", "speed": 9})
    with pytest.raises(
        DataError, match=r"drivers/1\.json is damaged or of another version \(lines\.0\.speed.*delete it"
    ):
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
    done, as_json = (call_unimoe("status", store.url, *more) for more in ((), ("--json",)))
    for one in (done, as_json):
        assert_refused(one, 4, "failed, wholly or in part: bad", silent=False)
    assert json.loads(as_json.stdout) == read_status(store)
    rows = [row.split() for row in done.stdout.splitlines()]
    assert ["reranking", "scifact:", "mine", "running", "700", "of", "1,000", "3", "0", "300", "1.5"] in rows
    assert ["a", "head", "running", "4", "2", "s", "ago"] in rows
    assert f"bad: {reason}" in done.stdout


def test_watching_ends_with_the_last_driver(store: UnitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "a", line("[b]", done=100))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        write(store, "a", line("[b]", done=100 + 450 * len(looks)), ended=len(looks) == 2)

    monkeypatch.setattr(time, "sleep", sleep)
    done = successful(call_unimoe("status", store.url, "--watch", "--json"))
    assert [json.loads(row)["progress"][0]["done"] for row in done.stdout.splitlines()] == [100, 550, 1000]
    assert "[b]" in successful(call_unimoe("status", store.url, "--watch")).stdout


def test_a_store_that_cannot_be_reached_is_one_line_without_its_password() -> None:
    for scheme, host in (("ftp", "127.0.0.1:9"), ("nowhere", "host")):
        done = call_unimoe("status", f"{scheme}://me:pw-secret@{host}/folder")
        assert_refused(done, 2, f"{scheme}://***@")
        assert "pw-secret" not in done.stderr
