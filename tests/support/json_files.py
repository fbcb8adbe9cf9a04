"""JSON files as a person edits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_plain(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_plain(path: Path, content: Any) -> None:
    """Write a JSON file in the place of another."""
    path.write_text(json.dumps(content), encoding="utf-8")
