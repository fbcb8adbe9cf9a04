"""A store on S3, played by moto's server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from unimoe.cluster.board import Board, read_status
from unimoe.cluster.units import UnitStore
from unimoe.core.errors import UsageError

s3fs = pytest.importorskip("s3fs", reason="needs s3fs: uv sync --extra cluster")
pytest.importorskip("moto.server", reason="needs moto's server: uv sync --extra cluster --group cluster")

BODY = b"\x00numbers\n" * 50


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def files(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bucket ``mine``, empty."""
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
def test_what_is_written_is_read_by_others() -> None:
    store = UnitStore("s3://mine/folder")
    assert store.keys("units/a") == set()
    store.write("units/a", "key", BODY)
    store.write("units/a", "empty", b"")
    other = UnitStore("s3://mine/folder/")
    assert (other.read("units/a", "key"), other.read("units/a", "empty")) == (BODY, b"")
    assert other.read("units/a", "other") is None
    assert other.keys("units/a") == {"key", "empty"}
    store.write("units/a", "later", BODY)
    assert other.keys("units/a") == {"key", "empty", "later"}  # nothing is cached


@pytest.mark.usefixtures("files")
def test_a_bucket_that_does_not_exist_is_one_line() -> None:
    store = UnitStore("s3://no-such-bucket/folder")
    assert store.keys("units") == set()
    assert store.read("units", "key") is None
    with pytest.raises(UsageError, match=r"^s3://no-such-bucket/folder: .*make the bucket, or give another --store$"):
        store.write("units", "key", BODY)


@pytest.mark.usefixtures("files")
def test_status_reads_what_a_driver_wrote() -> None:
    board = Board(UnitStore("s3://mine/folder"), lambda: 3)
    with board.noted("reranking scifact: mine", 12):
        board.count(board.line("reranking scifact: mine"), 12)
    board.close()
    (progress,) = read_status(UnitStore("s3://mine/folder"))["progress"]
    assert (progress["state"], progress["done"], progress["left"]) == ("done", 12, 0)
