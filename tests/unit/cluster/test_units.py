"""Finished units in a folder or a bucket: whole or not there, whatever happens to the store meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from unimoe.cluster import units
from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError, UsageError

BODY = b"\x00numbers\n" * 50


@pytest.fixture
def store(tmp_path: Path) -> UnitStore:
    return UnitStore(str(tmp_path / "store"))


def test_what_is_written_is_read_by_others(store: UnitStore) -> None:
    store.write("units/a", "key", BODY)
    other = UnitStore(store.url)
    assert other.read("units/a", "key") == BODY
    assert other.read("units/a", "other") is None
    assert (other.keys("units/a"), other.keys("units/b")) == ({"key"}, set())
    store.write("drivers", "one", b'{"half')
    with pytest.raises(DataError, match="drivers/one is damaged: delete it, and run again"):
        store.read_json("drivers", "one")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free room there, or give another --store"),
        (errno.EROFS, "allow this user to read and write there, or give another --store"),
    ],
)
def test_a_full_disk_and_a_forbidden_folder_are_one_line(
    store: UnitStore, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.write_bytes", fails)
    with pytest.raises(UsageError, match=rf"^{store.url}: .*{os.strerror(number)}.*{words}$"):
        store.write("units", "key", BODY)
    monkeypatch.undo()
    assert store.keys("units") == set()
    Path(store.url, "file").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match=r"file: .*make room for a folder there"):
        UnitStore(f"{store.url}/file").write("units", "key", BODY)


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def reached(name: str) -> Any:
    """A method of a bucket in memory, which fails while the bucket is out of reach."""

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.clock.now < self.answers_from:
            raise self.error
        return getattr(MemoryFileSystem, name)(self, *arguments, **options)

    return call


class Flaky(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A bucket that is out of reach until some time."""

    protocol = "flaky"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    clock = Clock()
    answers_from = 0.0
    error: Exception = ConnectionError("no route")

    cat_file, pipe_file, ls = map(reached, ("cat_file", "pipe_file", "ls"))


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Flaky]]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(Flaky, "store", {})
    monkeypatch.setattr(Flaky, "clock", Clock())
    monkeypatch.setattr(units, "time", Flaky.clock)
    yield Flaky
    Flaky.answers_from, Flaky.error = 0.0, ConnectionError("no route")


@pytest.mark.parametrize("seconds", [0.4, 500])
def test_a_store_that_comes_back_is_waited_for(flaky: type[Flaky], seconds: float) -> None:
    store = UnitStore("flaky://bucket")
    flaky.answers_from = seconds
    store.write("units", "key", BODY)
    assert flaky.clock.now >= seconds
    flaky.answers_from = flaky.clock.now + seconds
    assert (store.read("units", "key"), store.keys("units")) == (BODY, {"key"})
    assert max(flaky.clock.pauses) <= 30


@pytest.mark.parametrize(
    ("error", "words", "seconds"),
    [
        (ConnectionError("no route"), r"^flaky://bucket: out of reach for 600 s \(ConnectionError: no route\)", 600),
        (PermissionError("Access Denied"), "allow this user to read and write there", 0),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), "set the keys", 0),
    ],
)
def test_patience_ends_with_what_to_do_and_what_does_not_pass_is_not_waited_for(
    flaky: type[Flaky], error: Exception, words: str, seconds: float
) -> None:
    flaky.answers_from, flaky.error = 1e9, error
    with pytest.raises(UsageError, match=words):
        UnitStore("flaky://bucket").write("units", "key", BODY)
    assert seconds - 100 < flaky.clock.now <= seconds


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    moto = pytest.importorskip("moto.server", reason="needs moto's server: uv sync --extra cluster --group cluster")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def files(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bucket ``mine``, empty, on S3 as moto's server plays it."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: uv sync --extra cluster")
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    found = s3fs.S3FileSystem()
    found.mkdir("mine")
    yield found
    found.rm("mine", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("files")
def test_what_is_written_to_s3_is_read_by_others() -> None:
    store, other = UnitStore("s3://mine/folder"), UnitStore("s3://mine/folder/")
    assert store.keys("units/a") == set()
    store.write("units/a", "key", BODY)
    store.write("units/a", "empty", b"")
    assert (other.read("units/a", "key"), other.read("units/a", "empty")) == (BODY, b"")
    assert other.read("units/a", "other") is None
    assert other.keys("units/a") == {"key", "empty"}
    store.write("units/a", "later", BODY)
    assert other.keys("units/a") == {"key", "empty", "later"}  # nothing is cached


@pytest.mark.usefixtures("files")
def test_a_bucket_that_does_not_exist_is_one_line() -> None:
    store = UnitStore("s3://no-such-bucket/folder")
    assert (store.keys("units"), store.read("units", "key")) == (set(), None)
    with pytest.raises(UsageError, match=r"^s3://no-such-bucket/folder: .*make the bucket, or give another --store$"):
        store.write("units", "key", BODY)


@pytest.mark.parametrize("url", ["nosuch://bucket/folder", "S4://x"])
def test_a_url_without_a_client_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(UsageError, match=rf"--store {url}: no client for such a store .*give a folder, s3://"):
        UnitStore(url)
