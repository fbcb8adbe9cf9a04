"""JSON files as a person edits them: without the checksum that a run has written into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_plain(path: Path) -> Any:
    """Read a JSON file, of an object without its checksum."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content.pop("checksum", None)
    return content


def write_plain(path: Path, content: Any) -> None:
    """Write a JSON file in the place of another."""
    path.write_text(json.dumps(content), encoding="utf-8")
