"""Values put together by a key, and names put in the order in which people count."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def gathered(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return the values of equal keys together, keys in the order in which they first come."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def natural_key(name: object) -> list[tuple[int, str]]:
    """Return a sort key that puts ``run-2`` before ``run-10`` and ``@5`` before ``@10``."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", str(name))]
