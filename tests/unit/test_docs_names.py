"""What pages quote from the code, against the code: messages, files, keys of a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unimoe.results import EvalResult

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "unimoe"


def first_column(page: str) -> list[str]:
    """The names in code of each table's first column."""
    rows = re.findall(r"^\| (`[^|]*) \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_message_is_one_that_the_code_prints() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    # Adjacent string literals of a message are joined as Python joins them; what varies is left out on both sides.
    text = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text("utf-8") for path in files)).replace("`", "")
    messages = first_column("troubleshooting.md")
    assert len(messages) > 10
    for message in messages:
        for part in re.split(r"\s*…\s*", message):
            assert part.strip("(); ,:") in text, f"{message}: {part!r} is in no file"


@pytest.mark.parametrize("page", ["tour.md", "architecture.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", (DOCS / page).read_text("utf-8"))
    missing = [name for name in named if not any((root / name).is_file() for root in (SOURCE, ROOT))]
    assert named
    assert missing == []


def test_every_name_of_the_tour_is_in_a_file_of_its_stop() -> None:
    stops = (DOCS / "tour.md").read_text("utf-8").split("\n## ")[1:]
    assert len(stops) == 14
    for stop in stops:
        files = [name for name in re.findall(r"`([\w/]+\.py)`", stop) if (SOURCE / name).is_file()]
        text = "\n".join((SOURCE / name).read_text("utf-8") for name in files)
        for name in re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", re.sub(r"```.*?```", "", stop, flags=re.DOTALL)):
            assert name.rpartition(".")[2] in text, f"{stop.splitlines()[0]}: {name}"


def test_every_key_of_a_result_is_explained() -> None:
    assert first_column("results.md") == list(EvalResult.model_fields)
