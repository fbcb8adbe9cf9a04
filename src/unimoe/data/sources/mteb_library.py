"""MTEB, imported so that it keeps its files where ours are."""

from __future__ import annotations

import os
from typing import Any

from unimoe.io import cache_dir


def import_mteb() -> Any:
    """The package ``mteb``. Its import takes seconds, seeds the global random generators and makes a result cache.

    That cache would be made in the user's home unless ``MTEB_CACHE`` says otherwise.
    """
    os.environ.setdefault("MTEB_CACHE", str(cache_dir("mteb")))
    import mteb

    return mteb
