"""Train, evaluate and judge retrieval models: is it worth going on?"""

from __future__ import annotations

import importlib.util
import pkgutil

import typer

from unimoe import studies
from unimoe.cli.analyze import analyze
from unimoe.cli.compare import SeveralValues, compare
from unimoe.cli.doctor import doctor
from unimoe.cli.evaluate import evaluate
from unimoe.cli.evaluate_run import evaluate_run
from unimoe.cli.export_mteb import export_mteb
from unimoe.cli.parity import parity
from unimoe.cli.retrieve import retrieve
from unimoe.cli.run_experiment import run_experiment
from unimoe.cli.status import status
from unimoe.cli.train import train

# A command imports what it needs when it runs, so that --help takes no time.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

app.command("demo")(run_experiment)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("retrieve")(retrieve)
app.command("evaluate-run")(evaluate_run)
app.command("analyze")(analyze)
app.command("compare", cls=SeveralValues)(compare)
app.command("parity")(parity)
app.command("export-mteb")(export_mteb)
app.command("doctor")(doctor)
app.command("status")(status)


def _add_studies() -> None:
    """Add the commands of every study, which its ``command.py`` lists in ``COMMANDS``."""
    for study in pkgutil.iter_modules(studies.__path__):
        folder = f"{studies.__name__}.{study.name}"
        if importlib.util.find_spec(f"{folder}.command"):
            for name, command in importlib.import_module(f"{folder}.command").COMMANDS.items():
                app.command(name)(command)


_add_studies()
