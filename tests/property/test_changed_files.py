"""What a run writes and reads back is cut at every length, and one of its bits flipped: it is never taken for sound.

The reader must refuse the file by name, or treat it as absent, so that it is made again. It may also find that nothing
that counts was lost (the line end after a JSON object). It must never return anything else than what was written.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.written_files import ARTEFACTS

from unimoe.core.errors import DataError

EVERY_LENGTH, CUTS, FLIPS = 4096, 200, 200


def cuts(content: bytes, choice: random.Random) -> Iterator[bytes]:
    """Every beginning of a file, or some of a long one."""
    size = len(content)
    lengths = range(size) if size <= EVERY_LENGTH else [0, size - 1, *choice.sample(range(size), CUTS)]
    return (content[:length] for length in lengths)


def flips(content: bytes, choice: random.Random) -> Iterator[bytes]:
    """A file with one bit changed, at seeded places.

    They are not in the name of the last key, ``checksum``: nothing else has changed then, and the file is read as one
    without.
    """
    names = {at for found in re.finditer(b"checksum", content) for at in range(*found.span())}
    places = [at for at in range(len(content)) if at not in names]
    for _ in range(FLIPS):
        at, bit = choice.choice(places), 1 << choice.randrange(8)
        yield content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def is_sound(found: Any, expected: Any, name: str) -> bool:
    """Return whether an answer is right: absent, whole, or of an unfinished training's log its first records."""
    if "log" in name:
        return bool(found == expected[: len(found)])
    return found is None or bool(found == expected)


@pytest.mark.parametrize("name", ARTEFACTS)
@pytest.mark.parametrize("damage", [cuts, flips])
def test_nothing_but_what_was_written_is_read(
    name: str, damage: Callable[[bytes, random.Random], Iterator[bytes]], tmp_path: Path
) -> None:
    path, read = ARTEFACTS[name](tmp_path)
    content, expected = path.read_bytes(), read()
    assert expected is not None
    refusals, absent = [], 0
    for number, damaged in enumerate(damage(content, random.Random(name))):
        path.parent.mkdir(exist_ok=True)  # a reader may have removed what is of no use
        path.write_bytes(damaged)
        try:
            found = read()
        except DataError as error:
            refusals.append(str(error))
            continue
        absent += found is None or found != expected
        assert is_sound(found, expected, name), (number, damaged)
    assert all(line.startswith(str(tmp_path)) and "\n" not in line for line in refusals)
    assert len(refusals) + absent > 0.9 * number
