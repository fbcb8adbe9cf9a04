"""What all tests share: real collections where they are at hand, caches out of the user's way, and no network."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Python compiles a library once and keeps the byte code, unless the environment forbids it; then each of the processes
# that tests start would compile torch, transformers and mteb again, for half a minute.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# All are read when the libraries are imported, so they are set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # a worker per core: more threads would only wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"
_mteb_cache = tempfile.TemporaryDirectory(prefix="unimoe-mteb-")
os.environ["MTEB_CACHE"] = _mteb_cache.name

settings.register_profile("suite", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("suite")


_frozen_modules = 0


def pytest_runtest_setup() -> None:
    """Hide from the garbage collector what libraries hold: commands collect, and a collection takes half a second."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + 100:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


def pytest_sessionfinish() -> None:
    """Let the interpreter release everything at its end: libraries complain about what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def unimoe_data() -> Path:
    """The folder of real collections, named by UNIMOE_DATA; a test that needs it is skipped elsewhere."""
    folder = os.environ.get("UNIMOE_DATA")
    if not folder:
        pytest.skip("needs real collections: set UNIMOE_DATA to their folder")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"UNIMOE_DATA is {folder}, which is no folder")
    return path


@pytest.fixture(scope="session")
def models_extra() -> None:
    """Skip a test where the light install alone is tested."""
    pytest.importorskip("torch", reason="needs unimoe[models]")


@pytest.fixture
def tmp_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in place of the user's."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("UNIMOE_CACHE", str(cache))
    return cache


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute with one thread, as processes under torchrun do; on busy cores, two wait for each other for minutes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole experiment at the size of a test."""
    from support.experiments import tiny_experiment

    return tiny_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no report: its figures take most of the time of a test that does not look at them."""
    monkeypatch.setattr(
        "unimoe.analysis.report.write_report", lambda analysis: analysis.results.output_dir / "analysis/report.html"
    )


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a report, but no files of its figures."""
    monkeypatch.setattr("unimoe.analysis.figures.save", lambda figure, stem: stem)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse connections that would leave this machine: the default suite needs no network."""

    def guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
        def connect_here(self: socket.socket, address: Any) -> Any:
            _refuse_remote(address)
            return connect(self, address)

        return connect_here

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))
        yield


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that are looked up, all in vain, while nobody says that the hub is out of reach.

    Libraries swallow the failure of what they ask for on the side, so that a refused connection shows nowhere.
    """
    from huggingface_hub import constants

    hosts: list[str] = []

    def unknown(host: Any, *_: Any, **__: Any) -> Any:
        hosts.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    return hosts


def _refuse_remote(address: Any) -> None:
    if not isinstance(address, tuple) or address[0] in {"", "localhost"}:  # a Unix socket, or this machine
        return
    try:
        local = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        local = False
    if not local:
        raise RuntimeError(f"a test tried to reach {address[0]}: the suite needs no network")
