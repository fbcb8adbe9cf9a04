"""Switch each component of the translator's objective off and on: what it is worth, and how often it was active.

uv run scripts/ablate_translator.py
uv run scripts/ablate_translator.py --data train.npz --captions captions.txt --device cuda
"""

import typer

from unimoe.core.console import run
from unimoe.studies.translator.command import ablate_translator

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(ablate_translator)
    run(app)
