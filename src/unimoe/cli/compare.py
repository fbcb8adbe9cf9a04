"""``unimoe compare``: a verdict, or a table of systems, from TREC runs alone or from any folder of results."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import typer

from unimoe.cli.compare_options import Options
from unimoe.cli.help import FirstOptions
from unimoe.core.console import stderr


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


def compare(**options: Any) -> None:
    """Compare systems from their TREC runs: a verdict on a joint model, or a table of who beats whom.

    unimoe compare --example

    unimoe compare --specialist a1.trec a2.trec --joint b1.trec b2.trec b3.trec --qrels q.tsv

    unimoe compare --baseline bm25.trec --systems d.trec 'mono-*.trec' --qrels q.tsv

    unimoe compare --dataset dl19=q19.txt dl20=q20.txt --systems 'bm25=runs/{dataset}/bm25.trec' ...

    unimoe compare --results outputs/mine --baseline bm25

    unimoe compare --baseline bm25 --systems cross-encoder:FOLDER https://HOST/v1 --dataset scifact --set ...

    Each file is one training seed, counted from 0; numbers of seeds may differ, and their order has no meaning unless
    --paired says so. Documents rank by score, equal scores by document id, descending, as in trec_eval; the ranks in
    the file are not used. Exits 0 whatever the verdict, 2 on wrong usage, 3 on wrong data; with --gates as verdicts
    does: 0 (all PASS), 10 (FAIL), 11 (MARGINAL), 12 (INCONCLUSIVE or advisory).
    """
    from unimoe.cli.compare_forms import run

    chosen = Options(**options)
    if chosen.example:
        chosen = chosen.with_example()
        stderr.print(f"unimoe compare {' '.join(chosen.recorded)}", soft_wrap=True)
    raise typer.Exit(run(chosen))


compare.__signature__ = inspect.signature(Options, eval_str=True)  # type: ignore[attr-defined]
