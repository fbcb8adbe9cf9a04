"""Every promise of SECURITY.md names tests, and those exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "SECURITY.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.rstrip(" |").endswith("| tests")
]
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_row_names_its_tests_or_says_why_there_is_none() -> None:
    assert len(ROWS) > 25
    assert [row for row in ROWS if not NAMED.search(row[-1]) and not row[-1].strip(" |").startswith("none: ")] == []


def test_every_test_that_is_named_exists() -> None:
    named = {pair for row in ROWS for pair in NAMED.findall(row[-1])}
    there = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named - there == set()
