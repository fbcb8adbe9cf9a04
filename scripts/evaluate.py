"""Evaluate a checkpoint on a tier of collections.

uv run scripts/evaluate.py --checkpoint outputs/bundled/joint_r8/seed_0/checkpoint --eval-tier fast
"""

import typer

from unimoe.cli.evaluate import evaluate
from unimoe.core.console import run

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(evaluate)
    run(app)
