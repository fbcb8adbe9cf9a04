"""What is at hand on this machine, and the error for what is not."""

from __future__ import annotations

import os
from pathlib import Path

from unimoe.errors import DataError

DOWNLOAD_ADVICE = "install the extra (uv sync --extra collections) and connect to the network"


class UnavailableError(DataError):
    """A collection that exists but cannot be had here."""


def user_folder() -> Path | None:
    """The user's folder of collections, which UNIMOE_DATA names; None where it is not set."""
    folder = os.environ.get("UNIMOE_DATA")
    return Path(folder) if folder else None


def not_at_hand(name: str, advice: str, cause: Exception) -> UnavailableError:
    """The error for a collection that could not be fetched.

    Args:
        name: as written in the catalogue.
        advice: how to get it, an imperative.
        cause: what the library that fetches it raised.
    """
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:200]
    return UnavailableError(f"collection {name!r} is not at hand; {advice} ({reason})")
