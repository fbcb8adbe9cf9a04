"""Train, evaluate and judge retrieval models: is it worth going on?"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from unimoe.cli.analyze import analyze
from unimoe.cli.cache import cache
from unimoe.cli.compare import compare
from unimoe.cli.doctor import doctor
from unimoe.cli.evaluate import evaluate
from unimoe.cli.evaluate_run import evaluate_run
from unimoe.cli.export_mteb import export_mteb
from unimoe.cli.help import FirstOptions, GroupedCommands, SeveralValues
from unimoe.cli.import_collection import import_collection
from unimoe.cli.parity import parity
from unimoe.cli.retrieve import retrieve
from unimoe.cli.run_experiment import run_experiment
from unimoe.cli.status import status
from unimoe.cli.train import train
from unimoe.core import console
from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.registry import load_plugins

# A command imports what it needs when it runs, so that --help takes no time.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, cls=GroupedCommands, help=__doc__)


def _print_version(asked: bool) -> None:
    if asked:
        import unimoe

        console.stdout.print(f"unimoe {unimoe.__version__}")
        raise typer.Exit


def _import_modules(names: list[str]) -> None:
    """Import a user's modules, which register losses, measures and the rest, for this call."""
    for name in names:
        if "" not in sys.path:
            sys.path.insert(0, "")  # an installed command does not look into the present folder by itself
        try:
            importlib.import_module(name)
        except UnimoeError:
            raise
        except Exception as error:  # whatever the module of a user raises
            raise UsageError(f"--import {name}: {type(error).__name__}: {error}; repair it, or give another") from error


@app.callback()
def every_command(
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import a module that registers losses, measures or the rest."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Train, evaluate and judge retrieval models: is it worth going on?"""
    _import_modules(imports or [])


_JUDGE, _RUN, _PRACTICE = "Compare and judge (light install)", "Train and evaluate", "Practical"

app.command("compare", cls=SeveralValues, rich_help_panel=_JUDGE)(compare)
app.command("evaluate-run", rich_help_panel=_JUDGE)(evaluate_run)
app.command("analyze", rich_help_panel=_JUDGE)(analyze)
app.command("run", rich_help_panel=_RUN)(run_experiment)
app.command("train", rich_help_panel=_RUN)(train)
app.command("evaluate", cls=FirstOptions, rich_help_panel=_RUN)(evaluate)
app.command("retrieve", rich_help_panel=_RUN)(retrieve)
app.command("import", rich_help_panel=_PRACTICE)(import_collection)
app.command("doctor", rich_help_panel=_PRACTICE)(doctor)
app.command("status", rich_help_panel=_PRACTICE)(status)
app.command("cache", rich_help_panel=_PRACTICE)(cache)
app.command("parity", rich_help_panel=_PRACTICE)(parity)
app.command("export-mteb", rich_help_panel=_PRACTICE)(export_mteb)


def _add_plugins() -> None:
    """Add the commands of studies and of other packages, each a mapping of names to functions."""
    try:
        for commands in load_plugins("unimoe.commands"):
            for name, command in commands.items():
                group = "Studies" if command.__module__.startswith("unimoe.studies.") else "Other packages"
                app.command(name, rich_help_panel=group)(command)
    except UnimoeError as error:  # a package that cannot be imported must not take the other commands away
        console.print_error(error)


_add_plugins()
