"""What pages say, against the code and the logs that they quote; and their blocks of Python."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.docs import code_blocks, run_python
from support.results import write_experiment

from unimoe.core.trec import write_qrels, write_run
from unimoe.results import EvalResult

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "unimoe"
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


PAGE = DOCS / "python.md"
QUERIES = [f"q{i:02d}" for i in range(40)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder that the page speaks of."""
    write_experiment(tmp_path / "outputs" / "mine")
    write_qrels(tmp_path / "qrels.txt", {query: {"relevant": 1} for query in QUERIES})
    for name, hits in (("bm25", 2), ("mono-0", 4), ("mono-1", 5)):  # in so many of six queries the first is relevant
        first = {query: float(i % 6 < hits) for i, query in enumerate(QUERIES)}
        scores = {query: {"relevant": value, "other": 0.5, "third": 0.25} for query, value in first.items()}
        write_run(tmp_path / f"{name}.trec", scores, name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("files")
def test_the_examples_show_what_comes_out() -> None:
    blocks = code_blocks(PAGE)
    assert {block.language for block in blocks} == {"python"}
    run_python(blocks)


class TestRunner:
    def test_a_wrong_value_names_page_and_line(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("text\n\n```python\n>>> 1 + 1\n3\n\n```\n", "utf-8")
        with pytest.raises(AssertionError, match=r"page\.md.*line 4"):
            run_python(code_blocks(page))


LIGHT = """
import json, sys
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile(cell["source"], "cell", "exec"), globals())
print(second.label, second.look, "torch" in sys.modules)
"""


@pytest.mark.parametrize("page", ["tutorial", "beside"])
def test_the_page_shows_what_comes_out(page: str) -> None:
    blocks = [block for block in code_blocks(DOCS / f"{page}.md", "python") if not block.not_run]
    assert len(blocks) > 3
    run_python(blocks)


def test_the_notebook_is_current() -> None:
    made: Any = runpy.run_path(str(DOCS / "notebook.py"))["notebook"]
    assert (DOCS / "tutorial.ipynb").read_text("utf-8") == made(), "uv run python docs/notebook.py writes it again"


def test_the_notebooks_cells_run_in_order_without_torch() -> None:
    whole = json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))
    assert {"cell_type", "metadata", "source"} <= set(whole["cells"][0])
    assert all({"execution_count", "outputs"} <= set(c) for c in whole["cells"] if c["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(DOCS / "tutorial.ipynb")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "PASS 6 False\n", done.stderr


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_citation_has_the_version_and_the_licences_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert " AND ".join(citation["license"]) == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
