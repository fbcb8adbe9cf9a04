"""A piece of work done by a second process while the first goes on."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from unimoe.errors import UnimoeError

T = TypeVar("T")


@contextmanager
def in_background(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Start ``work`` in a copy of this process, and collect what it returns by calling what the context gives.

    A copy sees all that has been loaded, without sending it. Only Linux copies a process safely; elsewhere, and on one
    core, the work is done when it is asked for.

    Args:
        work: returns something that can be sent between processes, and changes nothing else that the caller sees but
            files.

    Raises:
        UnimoeError: what the work raised, when it is collected.
        RuntimeError: the work failed otherwise.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield work
        return
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, sender), daemon=True)
    process.start()
    sender.close()
    try:
        yield lambda: _received(receiver)
    finally:
        process.terminate()  # long done where its result was collected
        process.join()


def _send(work: Callable[[], T], sender: Connection) -> None:
    try:
        outcome: tuple[T | None, UnimoeError | None] = work(), None
    except UnimoeError as error:
        outcome = None, error
    except Exception:
        traceback.print_exc()
        return
    sender.send(outcome)
    sender.close()


def _received(receiver: Connection) -> Any:
    try:
        value, error = receiver.recv()
    except EOFError:
        raise RuntimeError("a process in the background failed; its traceback stands above") from None
    if error is not None:
        raise error
    return value
