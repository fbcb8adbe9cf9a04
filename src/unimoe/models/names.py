"""What a model is called: a folder, or an id of the hub."""

from __future__ import annotations

from pathlib import Path

from unimoe.errors import DataError


def folder_named(key: str, base: str) -> Path | None:
    """The folder that ``base`` names; None where it can only be a hub id.

    Args:
        key: the config key it stands at, for the error.
        base: a path, or ``owner/name``.

    Raises:
        DataError: it is a path, and no folder is there.
    """
    if Path(base).is_dir():
        return Path(base)
    if base.startswith(("/", ".", "~")) or base.count("/") > 1:
        raise DataError(f"{key} {base!r}: no such folder; check the path, or train the model that is to be there")
    return None
