"""Every example of docs/python.md, run as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docs import Block, code_blocks, run_python
from support.results import write_experiment

from unimoe.core.trec import write_qrels, write_run

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
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
    def test_finds_blocks_with_their_lines_and_reasons(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "a\n\n```bash\nls\n```\n\n<!-- not run: needs a GPU -->\n```python\nx = 1\ny = 2\n```\n", "utf-8"
        )
        assert code_blocks(page) == [
            Block(page, 4, "bash", "ls\n", ""),
            Block(page, 9, "python", "x = 1\ny = 2\n", "needs a GPU"),
        ]
        assert [block.line for block in code_blocks(page, "python")] == [9]

    def test_blocks_share_their_names_and_a_marked_one_is_left_out(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "```python\nx = 1\n```\n<!-- not run: why -->\n```python\n1 / 0\n```\n"
            "```python\n>>> y = x + 1\n>>> y\n2\n\n```\n```python\nz = y\n```\n",
            "utf-8",
        )
        assert run_python(code_blocks(page))["z"] == 2

    def test_a_wrong_value_names_page_and_line(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("text\n\n```python\n>>> 1 + 1\n3\n\n```\n", "utf-8")
        with pytest.raises(AssertionError, match=r"page\.md.*line 4"):
            run_python(code_blocks(page))
