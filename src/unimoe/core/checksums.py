"""Checksums in what a run writes and reads back: an object of JSON, a file or a line of a log, ends with its own.

The last key, ``checksum``, is of the bytes before it; gates have one in a comment, of the bytes below it. So a file is
checked without being parsed twice, and one that was made by hand, or by an earlier version, is read without.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from unimoe.core.errors import DataError

_END = re.compile(rb',\s*"checksum":\s*"([^"]{16})"\s*\}\s*\Z')
_COMMENT = re.compile(rb'# "checksum": "(.*)"\r?\n')
_LONGEST_END = 200


def sealed(text: str) -> str:
    """Return the text of a JSON object, which has a key, with its checksum as the last one."""
    open_object = text.removesuffix("}")
    body = open_object.rstrip()
    before, after = (" ", "") if body == open_object else ("\n  ", "\n")
    return f'{body},{before}"checksum": "{_checksum(encoded(body))}"{after}}}'


def sealed_yaml(content: bytes) -> bytes:
    """Return YAML below a comment with its checksum."""
    return f'# "checksum": "{_checksum(content)}"\n'.encode() + content


def unsealed(content: bytes, name: Path | str) -> bytes:
    """Return a sealed object as it was before, and any other content as it is.

    Args:
        content: of a file or a line.
        name: of the file, or the file and the line, for the error.

    Raises:
        DataError: something in it has changed.
    """
    end = _END.search(content, max(0, len(content) - _LONGEST_END))
    if end is None:
        return content
    body = content[: end.start()]
    if _checksum(body).encode() != end[1]:
        raise changed(name)
    return body + b"}\n"


def resealed(content: bytes) -> bytes:
    """Return an object that was changed on purpose with a checksum that fits, if it had one."""
    end = _END.search(content, max(0, len(content) - _LONGEST_END))
    if end is None:
        return content
    return content[: end.start(1)] + _checksum(content[: end.start()]).encode() + content[end.end(1) :]


def unsealed_yaml(content: bytes, name: Path | str) -> bytes:
    """Return sealed YAML without its comment, and any other as it is. Errors are those of ``unsealed``."""
    begin = _COMMENT.match(content)
    if begin is None:
        return content
    body = content[begin.end() :]
    if _checksum(body).encode() != begin[1]:
        raise changed(name)
    return body


def changed(name: Path | str) -> DataError:
    """Return the error for what no longer has its checksum."""
    return DataError(
        f"{name}: was changed after it was written; delete it and run again, or remove its `checksum` if the change is "
        "meant"
    )


def encoded(text: str) -> bytes:
    """Return UTF-8; half a surrogate pair, which a collection's JSON may hold, becomes its escape, which is JSON's."""
    return text.encode("utf-8", "backslashreplace")


def _checksum(body: bytes) -> str:
    unix = body.replace(b"\r\n", b"\n") if b"\r" in body else body  # git may have changed the ends of lines
    return hashlib.sha256(unix).hexdigest()[:16]
