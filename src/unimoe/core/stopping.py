"""Ctrl-C and SIGTERM end a command with one line and exit code 130.

A signal becomes an exception, so that temporary files are removed on the way out. A user's ``except BaseException``, a
library's callback or a thread that does not end may swallow it, so a timer cuts the process off some seconds later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED = 130
"""The exit code of a command that Ctrl-C or SIGTERM ended."""

_LINE = "error: stopped; run the same command again to go on from what is done\n"
_PATIENCE = 8.0  # seconds from the signal to the cut; temporary files are removed in less

_listening = 0  # the id of the process that hears signals; a fork of it has its handlers too
_came = False  # whether a signal did


class Stopped(BaseException):
    """A signal asked this process to end; no ``SystemExit``, which users' functions may raise themselves."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process when Ctrl-C or SIGTERM comes while the block runs; only a main thread can."""
    global _listening, _came
    if threading.current_thread() is not threading.main_thread() or _listening == os.getpid():
        try:
            yield
        finally:
            if _came:  # in place of the error that came of it, or of success that may be none
                raise Stopped
        return
    _listening, _came = os.getpid(), False
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _listening = 0
        if _came:
            sys.stderr.write(_LINE)
            sys.stderr.flush()
            sys.exit(STOPPED)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(*_: object) -> None:
    global _came
    if os.getpid() != _listening:
        raise SystemExit(STOPPED)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends already
    _came = True
    timer = threading.Timer(_PATIENCE, _cut_off)
    timer.daemon = True
    timer.start()
    raise Stopped


def _cut_off() -> None:
    if _listening:  # else the line is there already
        os.write(2, _LINE.encode())
    os._exit(STOPPED)
