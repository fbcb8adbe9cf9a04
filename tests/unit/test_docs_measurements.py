"""What the pages of the studies say was measured, against the log that they quote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = ["biencoder", "cross_encoder", "heads", "translator"]
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+(?![\w.]*\d)")


def numbers(text: str) -> list[str]:
    """The numbers with decimals of a text; a page writes 0.05 where the log writes .05."""
    return [number.removeprefix("0") for number in NUMBER.findall(text)]


def measured(study: str) -> str:
    """The section of a study's page that quotes the log."""
    page = (DOCS / "studies" / f"{study}.md").read_text(encoding="utf-8")
    return page.partition("## What the measurements taught\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("study", STUDIES)
def test_a_number_that_a_page_quotes_stands_in_a_log_that_it_links(study: str) -> None:
    text = measured(study)
    logs = {DOCS / "log" / name for name in re.findall(r"\]\(\.\./log/([\w-]+\.md)", text)}
    logged = {number for log in logs for number in numbers(log.read_text(encoding="utf-8"))}
    quoted = numbers(re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    assert quoted, "the section quotes no number"
    assert [number for number in quoted if number not in logged] == []


@pytest.mark.parametrize(
    ("study", "log", "row"),
    [
        ("translator", "2026-11-23-reruns", r"\| from_random \|.*\((\.\d+)\)"),
        ("biencoder", "2026-11-23-reruns", r"recall_of_retrieved@10 \+1\.60, p (\.\d+) by Holm"),
        ("biencoder", "2026-11-23-reruns", r"-2\.6 \(-5\.0 to -\.1, p (\.\d+)\)"),
        ("heads", "2026-11-23-reruns", r"\| 6,000 \| eggroll_products \|[^|]*\|[^|]*\|.*?to \+\.1 \((\.\d+)\)"),
        ("heads", "2026-11-23-reruns", r"\| eggroll \| 69\.15 .*\((\.\d+)\) \| 69\.56"),
    ],
)
def test_a_difference_that_is_not_significant_is_quoted_with_its_p(study: str, log: str, row: str) -> None:
    found = re.search(row, (DOCS / "log" / f"{log}.md").read_text(encoding="utf-8"))
    assert found is not None
    assert float(found[1]) > 0.05
    assert found[1] in numbers(measured(study))


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ("translator", "fourth look at these test images"),
        ("biencoder", "added when these scores were known"),
        ("heads", "not the first look at these test queries"),
    ],
)
def test_a_result_that_is_no_first_look_says_so(study: str, words: str) -> None:
    assert words in " ".join(measured(study).split())
