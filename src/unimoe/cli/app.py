"""Train, evaluate and judge retrieval models: is it worth going on?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from unimoe.cli.analyze import analyze
from unimoe.cli.cache import cache
from unimoe.cli.compare import compare
from unimoe.cli.doctor import doctor
from unimoe.cli.evaluate import evaluate
from unimoe.cli.evaluate_run import evaluate_run
from unimoe.cli.export_mteb import export_mteb
from unimoe.cli.import_collection import import_collection
from unimoe.cli.label import label
from unimoe.cli.parity import parity
from unimoe.cli.retrieve import retrieve
from unimoe.cli.run_experiment import run_experiment
from unimoe.cli.status import status
from unimoe.cli.train import train
from unimoe.core import console
from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.grouping import gathered
from unimoe.core.registry import load_plugins

FIRST_OPTIONS = {
    "compare": ("example", "specialist", "joint", "systems", "baseline", "results", "qrels", "dataset", "metric",
                "output_dir"),
    "evaluate": ("checkpoint", "model", "name", "zero_shot", "config", "override", "eval_tier", "datasets",
                 "output_dir", "plan"),
}  # fmt: skip
"""By command: the options that ``--help`` lists first, where it has so many that nobody finds them."""


class GroupedCommands(TyperGroup):
    """Commands under the heading of their ``rich_help_panel``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group of commands; the name's column has one width in all of them."""
        widest = max(map(len, self.commands))
        # Click would cut a summary where a line of 80 columns ends.
        rows = (
            (command.rich_help_panel or "Other packages", (name.ljust(widest), command.get_short_help_str(1000)))
            for name, command in self.commands.items()
            if isinstance(command, TyperCommand) and not command.hidden
        )
        for group, commands in gathered(rows).items():
            with formatter.section(group):
                formatter.write_dl(commands)


class FirstOptions(TyperCommand):
    """A command that lists some options apart in its ``--help``, after the others."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of ``FIRST_OPTIONS``, and all others."""
        first: Sequence[str] = FIRST_OPTIONS.get(self.name or "", ())
        rows = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                is_first = not first or param.name in (*first, "help")
                heading = "Options" if is_first else "More options"
                rows.append(("Arguments" if param.param_type_name == "argument" else heading, record))
        for heading, records in gathered(rows).items():
            with formatter.section(heading):
                formatter.write_dl(records)


class SeveralValues(FirstOptions):
    """A command without arguments, so that options may take several values at once: ``--joint b1.trec b2.trec``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Spell out repeated options, then parse as usual."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, repeated(args, names))


def repeated(arguments: Sequence[str], names: set[str]) -> list[str]:
    """Return arguments with each value after its option's name where that may be repeated: ``--a x --a y``."""
    spelled: list[str] = []
    current, has_value = "", False
    for argument in arguments:
        if argument.startswith("-"):
            name, equals, _ = argument.partition("=")
            current, has_value = (name if name in names else ""), bool(equals)
        elif current and has_value:
            spelled.append(current)
        else:
            has_value = True
        spelled.append(argument)
    return spelled


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
app.command("label", cls=SeveralValues, rich_help_panel=_RUN)(label)
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
