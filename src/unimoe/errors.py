"""The errors a user can mend, each with the exit code its command ends with.

Every message is one line that names the file, key or id, and what to do about it. The command line prints the message
and ends with the code; a traceback means a bug in unimoe.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UnimoeError(Exception):
    """Something the user can mend."""

    exit_code = 3


class UsageError(UnimoeError):
    """A wrong argument, option or configuration key."""

    exit_code = 2


class DataError(UnimoeError):
    """A file that is missing, malformed, or contradicts another."""

    exit_code = 3


class InputError(DataError):
    """One of a list of inputs cannot be used; who knows its id names it.

    Attributes:
        index: which of them.
        reason: why, and the mend.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"input {index}: {reason}")
        self.index, self.reason = index, reason


class MissingPartError(UnimoeError):
    """The work was done, but something that was asked for could not be had."""

    exit_code = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest known word, or an empty string."""
    match = get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
