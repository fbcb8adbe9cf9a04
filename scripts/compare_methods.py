"""Compare evolution strategies with gradients on a projection head: settings chosen on dev, five seeds, one test.

uv run scripts/compare_methods.py --num_steps 150
uv run scripts/compare_methods.py --task NanoMSMARCO --num_steps 1000 --device cuda
"""

import typer

from unimoe.core.console import run
from unimoe.studies.heads.command import compare_heads

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_heads)
    run(app)
