"""``unimoe compare``: a verdict, or a table of systems, from TREC runs alone or from any folder of results."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from unimoe.cli.compare_options import Options
from unimoe.core.console import stderr


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
