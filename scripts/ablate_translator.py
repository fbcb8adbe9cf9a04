"""Switch each component of the translator's objective off and on: what it is worth, and how often it was active.

uv run scripts/ablate_translator.py
uv run scripts/ablate_translator.py --data train.npz --captions captions.txt --device cuda
"""

import sys

import typer

from unimoe.core.console import run
from unimoe.studies.translator.command import compare_translators

if __name__ == "__main__":
    sys.argv.insert(1, "ablation")  # the part of the comparison
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_translators)
    run(app)
