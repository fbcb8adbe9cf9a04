"""Train, evaluate and judge retrieval models: is it worth going on?"""

from __future__ import annotations

import typer

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
from unimoe.core import console
from unimoe.core.errors import UnimoeError
from unimoe.core.registry import load_plugins

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


def _add_plugins() -> None:
    """Add the commands of studies and of other packages, each a mapping of names to functions."""
    try:
        for commands in load_plugins("unimoe.commands"):
            for name, command in commands.items():
                app.command(name)(command)
    except UnimoeError as error:  # a package that cannot be imported must not take the other commands away
        console.print_error(error)


_add_plugins()
