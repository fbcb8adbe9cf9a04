"""The main job: train, evaluate and judge every arm of an experiment.

uv run scripts/run_experiment.py
"""

import typer

from unimoe.cli.run_experiment import run_experiment
from unimoe.core.console import run

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(run_experiment)
    run(app)
