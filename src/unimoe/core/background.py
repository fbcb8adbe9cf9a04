"""Work done in a copy of this process while it goes on."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

from unimoe.core.errors import UnimoeError

T = TypeVar("T")

_PATIENCE = 10.0  # seconds for a process to end


@contextmanager
def in_background(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Start ``work`` in a copy of this process, and collect what it returns by calling what the context gives.

    A copy sees all that has been loaded, without sending it. What the work returns is sent; it may change nothing but
    files. Only Linux copies a process safely; elsewhere, and on one core, the work is done when it is asked for.

    Raises:
        UnimoeError: what the work raised, when it is collected.
        RuntimeError: the work failed otherwise.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield work
        return
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, sender, receiver), daemon=True)
    process.start()
    sender.close()

    def received() -> T:
        try:
            found: T | UnimoeError = receiver.recv()
        except EOFError:
            raise RuntimeError("a process in the background failed; its traceback is printed above") from None
        if isinstance(found, UnimoeError):
            raise found
        return found

    try:
        yield received
    finally:
        receiver.close()  # or it waits for ever to send what nobody collects
        process.terminate()  # long done where its result was collected
        process.join(_PATIENCE)
        process.kill()  # it may wait for a lock that a thread held when it was copied
        process.join()


def _send(work: Callable[[], T], sender: Connection, receiver: Connection) -> None:
    receiver.close()  # the copy of this process
    try:
        sender.send(work())
    except UnimoeError as error:
        sender.send(error)
    except BrokenPipeError:  # nobody collects it
        return
    except Exception:
        traceback.print_exc()
