"""Train a translator from caption vectors to image vectors.

uv run scripts/train_translator.py --config configs/translator.yaml --train train.npz --captions captions.txt
uv run scripts/train_translator.py --train flickr8k --model ridge
"""

import typer

from unimoe.core.console import run
from unimoe.studies.translator.command import train_translator

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(train_translator)
    run(app)
