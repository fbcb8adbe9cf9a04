"""How commands speak: results on stdout, progress and errors on stderr, one line per mendable error."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from unimoe.errors import UnimoeError

stdout = Console(highlight=False, markup=False)
"""What a command was asked for; safe to pipe. Without markup, so that names with brackets print as they are."""

stderr = Console(stderr=True, highlight=False, markup=False)
"""Progress, warnings, errors."""


def run(app: typer.Typer) -> NoReturn:
    """Run a command line to its end and leave with its exit code.

    An error the user can mend becomes one line on stderr and its exit code; any other exception is a bug in unimoe and
    keeps its plain traceback.
    """
    app.pretty_exceptions_enable = False
    try:
        app()
    except UnimoeError as error:
        print_error(error)
        sys.exit(error.exit_code)
    sys.exit(0)


def print_error(error: UnimoeError) -> None:
    """Print ``error: ...`` on stderr: one line whatever the message holds, not wrapped, so that paths can be copied."""
    message = " ".join(str(error).split())
    stderr.print(Text.assemble(("error:", "bold red"), " ", message), soft_wrap=True)
