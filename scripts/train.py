"""Train one arm of an experiment with one seed.

uv run scripts/train.py --arm rank_only_r8 --seed 0
"""

import typer

from unimoe.cli.train import train
from unimoe.core.console import run

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(train)
    run(app)
