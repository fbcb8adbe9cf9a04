"""Ctrl-C and SIGTERM end a command with one line and exit code 130, whatever it is at.

A signal becomes an exception, so that temporary files are removed on the way out. Python and libraries swallow
exceptions in many places (destructors, callbacks of C, a user's ``except BaseException``), and a call of C may wait for
long. So a thread hears of the signal too, and cuts the process off where it has not ended some seconds later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STOPPED = 130
"""The exit code of a command that Ctrl-C or SIGTERM ended."""

_LINE = "error: stopped; run the same command again to go on from what is done\n"
_PATIENCE = 8.0  # seconds from the signal to the cut; temporary files are removed in less

os.register_at_fork(after_in_child=lambda: _listening and signal.set_wakeup_fd(-1))  # a child's signals are its own

_listening = 0  # the id of the process that hears signals; copies of it have its handlers too
_came = False  # whether a signal did


class Stopped(BaseException):
    """A signal asked this process to end; no ``SystemExit``, which users' functions may raise themselves."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process when Ctrl-C or SIGTERM comes while the block runs; only a main thread can."""
    global _listening, _came
    if threading.current_thread() is not threading.main_thread() or _listening == os.getpid():
        with _never_lost():
            yield
        return
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    ours = (Stopped, SystemExit)  # a copy of this process raises the second
    sys.unraisablehook = lambda ignored: None if ignored.exc_type in ours else hook(ignored)
    _listening, _came = os.getpid(), False
    read, write = os.pipe()
    os.set_blocking(write, False)
    threading.Thread(target=_cut_off, args=(read,), daemon=True).start()
    wakes = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        with _never_lost():
            yield
    except Stopped:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # it ends already
        sys.stderr.write(_LINE)
        sys.stderr.flush()
        sys.exit(STOPPED)
    finally:
        signal.set_wakeup_fd(wakes)
        sys.unraisablehook = hook
        _listening = 0
        if not _came:  # else the thread waits to cut off exit handlers and threads that do not end
            os.close(write)
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _never_lost() -> Iterator[None]:
    """Raise a signal that was swallowed in place of the error that came of it, or of success that may be none."""
    try:
        yield
    finally:
        if _came:
            raise Stopped


def _stop(*_: object) -> None:
    global _came
    if os.getpid() != _listening:
        raise SystemExit(STOPPED)
    _came = True
    raise Stopped


def _cut_off(pipe: int) -> None:
    """End the process some seconds after its first signal, of which Python writes the number into the pipe."""
    while number := os.read(pipe, 1):
        if number[0] in (signal.SIGINT, signal.SIGTERM):
            time.sleep(_PATIENCE)
            with suppress(OSError):
                os.write(2, _LINE.encode() if _listening else b"")  # else the line is there already
            os._exit(STOPPED)
    os.close(pipe)
