"""How commands print their help, with the options that most people use first, and take several values of an option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unimoe.core.grouping import gathered

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
    """A command whose ``--help`` lists some options apart, after the others."""

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
