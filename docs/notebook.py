"""Write docs/tutorial.ipynb from docs/tutorial.md: its prose as Markdown cells, its examples as code with their output.

uv run python docs/notebook.py
"""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
_PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def notebook() -> str:
    """Return the notebook as JSON."""
    prose_and_code = _PYTHON.split(PAGE.read_text("utf-8"))
    cells = [_code(part) if i % 2 else _prose(part) for i, part in enumerate(prose_and_code)]
    whole = {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _prose(text: str) -> dict[str, Any]:
    # Links to pages of the manual lead there from the notebook too, which lies beside them.
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def _code(block: str) -> dict[str, Any]:
    examples = doctest.DocTestParser().get_examples(block)
    shown = [
        {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": {"text/plain": one.want}}
        for one in examples
        if one.want
    ]
    source = "".join(one.source for one in examples).strip()
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source, "outputs": shown}


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(), encoding="utf-8")
