"""Ctrl-C and SIGTERM end a command with one line and exit code 130, whatever it is at.

A signal becomes an exception, so that temporary files are removed on the way out. Python and libraries swallow
exceptions in many places: destructors, callbacks of C, imports that may fail, a user's ``except BaseException``. So it
is raised once more after some seconds, and then the process is cut off.

A signal that another thread took, or that came as a call began to wait, does not wake the call: Python would hear of it
at the call's end. So a thread sends it to the main thread again until it is heard.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 130
"""The exit code of a command that Ctrl-C or SIGTERM ended."""

_LINE = "error: stopped; run the same command again to go on from what is done"
_PATIENCE = 5.0  # seconds from each step to the next; temporary files are removed in less
_UNHEARD = 0.5  # seconds after which a signal that nothing has heard is sent again

atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # handlers are gone after that, and the timer would kill
os.register_at_fork(after_in_child=lambda: _listening and signal.set_wakeup_fd(-1))  # a child's signals are its own

_listening = 0  # the id of the process that hears signals; copies of it have its handlers too


class Stopped(BaseException):
    """A signal asked this process to end; no ``SystemExit``, which users' functions may raise themselves."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process when Ctrl-C or SIGTERM comes while the block runs; only a main thread can."""
    global _listening
    if threading.current_thread() is not threading.main_thread() or _listening == os.getpid():
        with _never_lost():
            yield
        return
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    ours = (Stopped, SystemExit)  # a copy of this process raises the second
    sys.unraisablehook = lambda ignored: None if ignored.exc_type in ours else hook(ignored)
    _listening = os.getpid()
    read, write = os.pipe()
    os.set_blocking(write, False)
    threading.Thread(target=_send_until_heard, args=(read, threading.get_ident()), daemon=True).start()
    wakes = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        with _never_lost():
            yield
    except Stopped:
        _then(lambda *_: os._exit(STOPPED))  # where an exit handler or a thread does not end
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write(f"{_LINE}\n")
        sys.exit(STOPPED)
    finally:
        _listening = 0
        signal.set_wakeup_fd(wakes)
        os.close(write)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _never_lost() -> Iterator[None]:
    """Raise a signal that was swallowed in place of the error that came of it, or of success that may be none."""
    try:
        yield
    finally:
        if _is_under_way():
            raise Stopped


def _send_until_heard(pipe: int, main: int) -> None:
    while number := os.read(pipe, 1):
        time.sleep(_UNHEARD)
        while number[0] in (signal.SIGINT, signal.SIGTERM) and _listening and not _is_under_way():
            signal.pthread_kill(main, number[0])
            time.sleep(_UNHEARD)
    os.close(pipe)


def _stop(*_: object) -> None:
    if not _is_under_way():
        _then(_stop_again)
    _raise()


def _stop_again(*_: object) -> None:
    _then(_cut_off)
    _raise()


def _cut_off(*_: object) -> None:
    if os.getpid() == _listening:
        os.write(2, f"{_LINE}\n".encode())
    os._exit(STOPPED)


def _is_under_way() -> bool:
    return signal.getsignal(signal.SIGALRM) in (_stop_again, _cut_off)


def _then(do: Callable[..., object]) -> None:
    signal.signal(signal.SIGALRM, do)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)


def _raise() -> None:
    raise Stopped if os.getpid() == _listening else SystemExit(STOPPED)
