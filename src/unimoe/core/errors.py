"""Errors that users can fix, each with the exit code of its command.

A message is one line that names the file, key or id and says what to do. A traceback means a bug in unimoe.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from copy import copy
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from unimoe.core.advice import install_extra

P = ParamSpec("P")
R = TypeVar("R")


class UnimoeError(Exception):
    """An error that the user can fix."""

    exit_code = 3


class UsageError(UnimoeError):
    """A wrong argument, option or configuration key."""

    exit_code = 2


class DataError(UnimoeError):
    """A file that is missing, malformed, or contradicts another."""


class InputError(DataError):
    """One of a list of inputs cannot be used; callers that know the id at this index raise an error with the id."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"input {index}: {reason}")
        self.index, self.reason = index, reason

    def __reduce__(self) -> tuple[object, ...]:  # pickle would make it of its message
        return type(self), (self.index, self.reason), self.__dict__


@contextmanager
def named_inputs(name: Callable[[int], str]) -> Iterator[None]:
    """Run a block, and let its error about one of its inputs name that input; ``name`` is called with its index."""
    try:
        yield
    except InputError as error:
        raise DataError(f"{name(error.index)}: {error.reason}") from None


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run a user's code, and make one line of any error with its kind, message and place."""
    try:
        with chdir("."):  # code that goes elsewhere takes no relative path of ours with it
            yield
    except UnimoeError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        message = " ".join(str(error).split())[:200]
        raised = f"{type(error).__name__}{f': {message}' if message else ''}{place}"
        raise DataError(f"{what} {raised}; fix it") from error


def guarded(what: str, thing: Any, methods: Iterable[str] = ()) -> Any:
    """Return a user's function, or a copy of an object with these methods, as ``users_code``; what is ours as it is."""
    if getattr(thing, "__module__", "").startswith("unimoe."):
        return thing
    found = copy(thing) if methods else users_code(what)(thing)
    for method in methods:
        if hasattr(found, method):  # set also where the object is frozen
            object.__setattr__(found, method, users_code(what)(getattr(found, method)))
    return found


class MissingPartError(UnimoeError):
    """The work was done without a part that is not available."""

    exit_code = 4


def refuse_missing(missing: Mapping[str, Sequence[str]]) -> None:
    """Raise ``MissingPartError`` where names of any kind are missing, for reasons that were printed."""
    counted = {f"{len(names)} {kind}{'s' * (len(names) > 1)}": names for kind, names in missing.items() if names}
    if counted:
        parts = " and ".join(f"{count} ({', '.join(names)})" for count, names in counted.items())
        raise MissingPartError(f"done, without {parts}; the reasons are above")


_EXTRAS = {"studies": "studies"} | dict.fromkeys(("experiment", "training", "cli.run_experiment", "cli.train"), "train")
_LIBRARIES = {
    *("torch", "transformers", "peft", "safetensors", "sentence_transformers", "mteb", "huggingface_hub", "tokenizers"),
    *("bm25s", "Stemmer", "rank_bm25", "torchjd", "sklearn"),
}


class MissingExtraError(UsageError, ModuleNotFoundError):
    """A library that the light install lacks; programs that probe for one catch it as an ``ImportError``."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return which extra brings a library that the light install lacks; None for any other module."""
    library = str(error.name).partition(".")[0]
    frames = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    extra = next((_EXTRAS[key] for name in frames for key in _EXTRAS if name.startswith(f"unimoe.{key}")), "models")
    needs = f"this needs {library}, which is not installed: {install_extra(extra)}"
    return MissingExtraError(needs, name=error.name) if library in _LIBRARIES else None


def names_extra(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of ``import unimoe``: where a library is not installed, it says which extra brings that."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            if isinstance(error, UsageError) or (needs := missing_extra(error)) is None:
                raise
            raise needs from None

    return called


def path_of(given: object, what: str) -> Path:
    """Return a path that is given as text or ``Path``; a UsageError where it is anything else, named by ``what``."""
    if isinstance(given, str | os.PathLike):
        if "\0" in str(given):
            raise UsageError(f"{what} holds a zero character; give its path as text")
        return Path(given)
    raise UsageError(f"{what} is a {type(given).__name__}; give its path as text")


def with_article(name: str) -> str:
    """Return a name with ``a`` or ``an`` before it."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the closest known word, or an empty string."""
    match = get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def first_few(ids: Sequence[str], number: int = 3) -> str:
    """Return the first ids for a message, with ``...`` where there are more."""
    return ", ".join(ids[:number]) + ", ..." * (len(ids) > number)


def some_ids(ids: Sequence[str]) -> str:
    """Return the number of ids, with the first of them, for a message."""
    return f"{len(ids):,} ({first_few(ids, 5)})"


_FULL = "no room is left on the disk, or no inode; free some, and run again"
_REFUSED = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "a file would be larger than this process may write; raise ulimit -f, and run again",
    errno.EMFILE: "this process may open no more files; raise ulimit -n, and run again",
    errno.ENFILE: "this system may open no more files; end some programs, and run again",
    errno.ENOMEM: "not enough memory{}; lower sizes or use a larger machine",
    errno.EIO: "the disk or device failed; check it, and run again",
    errno.EROFS: "nothing can be written on this file system; choose another place",
}
"""What the system refuses whatever the name of the file, and what to do about it."""


def refused_code(error: BaseException) -> int | None:
    """Return the code of what the system refused, one of ``_REFUSED``; None where it is something else.

    Libraries wrap such an error in errors of their own, which hold its words or its number.
    """
    if isinstance(error, UnimoeError):
        return None
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU
        return errno.ENOMEM
    number = error.errno if isinstance(error, OSError) else None
    if number is None and re.fullmatch(
        r"\d+ requested and \d+ written", str(error)
    ):  # so NumPy says that a disk is full
        return errno.ENOSPC
    return next(
        (code for code in _REFUSED if code == number or (number is None and os.strerror(code) in str(error))), None
    )


def system_refusal(error: Exception) -> UnimoeError | None:
    """Return an error in one line where the system refused something, such as a full disk; None where it is a bug."""
    named = isinstance(error, OSError) and isinstance(error.filename, str | bytes)
    place = f"{os.fsdecode(error.filename)}: " if named else ""  # type: ignore[attr-defined]
    if (code := refused_code(error)) is not None:
        reason = "" if isinstance(error, OSError) else " ".join(str(error).split())[:200]
        return UnimoeError(place + _REFUSED[code].format(f" ({reason})" if reason else ""))
    if not isinstance(error, OSError) or error.errno is None:
        return None
    return UnimoeError(f"{place}{error.strerror}; check the path, its rights, and the room on its disk")
