"""Work done beside other work: what it returns, and what becomes of its errors."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from unimoe.core.background import in_background
from unimoe.core.errors import DataError


def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0}, raising=False)


@pytest.mark.parametrize("cores", ["one", "all"])
def test_collects_what_the_work_returned(cores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cores == "one":
        one_core(monkeypatch)

    def work() -> list[float]:
        (tmp_path / "written").touch()
        return np.arange(3.0).tolist()

    with in_background(work) as collect:
        assert collect() == [0.0, 1.0, 2.0]
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("cores", ["one", "all"])
def test_an_error_the_user_can_mend_arrives_whole(cores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if cores == "one":
        one_core(monkeypatch)

    def work() -> None:
        raise DataError("conflicts.jsonl:3: not a record; remove the line")

    with in_background(work) as collect, pytest.raises(DataError, match=r"conflicts\.jsonl:3"):
        collect()


def test_another_failure_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ZeroDivisionError("a bug")

    with in_background(work) as collect, pytest.raises((RuntimeError, ZeroDivisionError)) as failure:
        collect()
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err or failure.type is ZeroDivisionError


def test_an_error_of_the_caller_does_not_wait_for_the_work() -> None:
    def work() -> None:
        time.sleep(600)

    with pytest.raises(KeyError), in_background(work):
        raise KeyError


def test_work_that_does_not_end_when_asked_to_is_not_waited_for_once_it_is_done() -> None:
    def work() -> bytes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.5)
        return bytes(2**20)  # more than fits into a pipe

    with pytest.raises(KeyError), in_background(work):  # noqa: PT012 - the work must have begun
        time.sleep(0.2)
        raise KeyError
