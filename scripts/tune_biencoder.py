"""Choose a bi-encoder's settings on dev among eight, then train the best with three seeds and measure it on test.

uv run scripts/tune_biencoder.py --dataset nfcorpus
uv run scripts/tune_biencoder.py --dataset nfcorpus --only layer,layer-slow
"""

import typer

from unimoe.core.console import run
from unimoe.studies.biencoder.command import tune_biencoder

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(tune_biencoder)
    run(app)
