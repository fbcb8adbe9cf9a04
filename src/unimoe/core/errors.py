"""Errors that users can fix, each with the exit code of its command.

A message is one line that names the file, key or id and says what to do. A traceback means a bug in unimoe.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches


class UnimoeError(Exception):
    """An error that the user can fix."""

    exit_code = 3


class UsageError(UnimoeError):
    """A wrong argument, option or configuration key."""

    exit_code = 2


class DataError(UnimoeError):
    """A file that is missing, malformed, or contradicts another."""

    exit_code = 3


class InputError(DataError):
    """One of a list of inputs cannot be used; callers that know its id raise an error with the id.

    Attributes:
        index: its index in the list.
        reason: why, and what to do.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"input {index}: {reason}")
        self.index, self.reason = index, reason


@contextmanager
def named_inputs(name: Callable[[int], str]) -> Iterator[None]:
    """Run a block whose error about one of its inputs becomes one that names it; ``name`` is called with its index."""
    try:
        yield
    except InputError as error:
        raise DataError(f"{name(error.index)}: {error.reason}") from None


class MissingPartError(UnimoeError):
    """The work was done without a part that is not available."""

    exit_code = 4


def refuse_missing(collections: Sequence[str] = (), mteb_tasks: Sequence[str] = ()) -> None:
    """Refuse to end well without the collections and MTEB tasks of these names, whose reasons were printed.

    Raises:
        MissingPartError: there is one.
    """
    parts = [(collections, "collection"), (mteb_tasks, "MTEB task")]
    missing = " and ".join(
        f"{len(names)} {what}{'s' * (len(names) > 1)} ({', '.join(names)})" for names, what in parts if names
    )
    if missing:
        raise MissingPartError(f"done, without {missing}; the reasons are above")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the closest known word, or an empty string."""
    match = get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def first_few(ids: Sequence[str], number: int = 3) -> str:
    """Return the first ids for a message, with ``...`` where there are more."""
    return ", ".join(ids[:number]) + ", ..." * (len(ids) > number)


_UNWRITTEN = ("basic_ios::clear: iostream error", "] . unexpected pos ")
"""What torch says when it could not write; it does not say why, and a full disk is why."""


def is_full_disk(error: Exception) -> bool:
    """Return whether an error says that a disk or a quota is full, or comes of it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(sign in str(error) for sign in (os.strerror(errno.ENOSPC), *_UNWRITTEN))
