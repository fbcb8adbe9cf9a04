"""Pages whose examples run: the tutorial, its notebook, and the page of the neighbours."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.docs import code_blocks, run_python

DOCS = Path(__file__).parents[2] / "docs"
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
