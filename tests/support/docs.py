"""Code blocks of Markdown pages, run as a reader would run them: top to bottom, in one interpreter.

A block is fenced and names its language. A block of Python with ``>>>`` prompts is a doctest, whose shown values must
be the ones that come out. On the line before a block, ``<!-- not run: reason -->`` says why tests leave it out, and
``<!-- printed by: COMMAND -->`` which command prints the text that it shows.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>[^\n]+?)|printed by: (?P<command>[^\n]+?)) -->\n+)?"
    r"^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its first line of code, ``not_run`` says why tests leave it out.

    ``printed_by`` is the command whose output a block of text shows, or empty.
    """

    path: Path
    line: int
    language: str
    text: str
    not_run: str
    printed_by: str = ""


def code_blocks(path: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, or in all of them."""
    page = path.read_text(encoding="utf-8")
    blocks = []
    for m in _BLOCK.finditer(page):
        line = page.count("\n", 0, m.start("text")) + 1
        blocks.append(Block(path, line, m["language"], m["text"], m["reason"] or "", m["command"] or ""))
    return [block for block in blocks if not languages or block.language in languages]


def run_python(blocks: Iterable[Block]) -> dict[str, Any]:
    """Run blocks of Python one after the other and return the names that they leave.

    Raises:
        AssertionError: a shown value is not the one that came out; names page and line.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.not_run:
            continue
        if block.text.lstrip().startswith(">>>"):
            _run_doctest(block, names)
        else:
            code = "\n" * (block.line - 1) + block.text  # a traceback then names the page's own lines
            exec(compile(code, str(block.path), "exec"), names)
    return names


def _run_doctest(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, names, block.path.name, str(block.path), block.line - 1)
    test.globs = names  # the parser copies them
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=_OPTIONS, verbose=False)
    runner.run(test, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)
