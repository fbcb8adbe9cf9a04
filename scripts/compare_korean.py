"""The comparison in Korean: Ko-StrategyQA with multilingual-e5-base, or without a network Belebele's Korean part.

uv run scripts/compare_korean.py --num_steps 1000 --device cuda
uv run scripts/compare_korean.py --offline
"""

import typer

from unimoe.core.console import run
from unimoe.studies.heads.command import compare_korean

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_korean)
    run(app)
