"""The ``unimoe`` command, which hears signals before it loads anything that takes time."""

from __future__ import annotations

from unimoe.core.stopping import ended_by_signals


def main() -> None:
    """Run the ``unimoe`` command."""
    with ended_by_signals():
        from unimoe.cli.app import app
        from unimoe.core.console import run

        run(app)
