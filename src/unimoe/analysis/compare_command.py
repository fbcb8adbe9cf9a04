"""``unimoe compare``: the verdict from TREC runs alone, for those who never used unimoe before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from unimoe.console import print_error, stderr, stdout

if TYPE_CHECKING:
    from unimoe.analysis.run_files import ScoredRun


class SeveralValues(TyperCommand):
    """A command whose repeatable options also take several values at once: ``--joint b1.trec b2.trec``.

    Such a command has no arguments, so every word up to the next option belongs to the option before it. A file whose
    name begins with ``-`` is given as ``./-name``.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Spell out repeated options, then parse as usual."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, repeated(args, names))


def repeated(arguments: Sequence[str], names: set[str]) -> list[str]:
    """The same arguments with an option's name before each of its values: ``--a x y`` becomes ``--a x --a y``.

    Args:
        arguments: of a command line.
        names: options that may be repeated.
    """
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


def compare(
    specialist: Annotated[list[Path], typer.Option(help="Run files of the specialist, one per seed; may be .gz.")],
    joint: Annotated[list[Path], typer.Option(help="Run files of the joint model, in the same order of seeds.")],
    qrels: Annotated[Path, typer.Option(help="Judgments in TREC or BEIR layout; may be .gz.")],
    metric: Annotated[
        str, typer.Option(help="ndcg_cut_10, recip_rank, map, recall_100, P_10, or ndcg@10, mrr@10, ...")
    ] = "ndcg_cut_10",
    specialist_name: Annotated[str, typer.Option(help="What to call the specialist.")] = "specialist",
    joint_name: Annotated[str, typer.Option(help="What to call the joint model.")] = "joint",
    dataset: Annotated[str | None, typer.Option(help="What to call the collection; by default as the qrels.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Query texts, lines of id, tab, text, to show with the queries that differ.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Score only the first so many documents of each query.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What is refused otherwise; the output says so. queries: compare on the judged queries that all runs "
            "have. zeros: judged queries that a run lacks count 0 there, as trec_eval -c counts them. depth: runs of "
            "different depth. duplicates: the same run given twice."
        ),
    ] = None,
    gates: Annotated[
        Path | None, typer.Option(help="Also judge by a gate file, whose arms and dataset are named as here.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Also write tables, figures and a report to its analysis/.")
    ] = None,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Of the paired test's interval.")] = 0.05,
    iterations: Annotated[int, typer.Option(min=1, help="Bootstrap resamples and permutations.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Judge a joint model against its specialist from TREC runs alone.

    unimoe compare --specialist a1.trec a2.trec --joint b1.trec b2.trec --qrels q.tsv

    One file is one seed, in the order given. Where one side has more files, the surplus is left out of the TIR and
    named. Documents rank by score, equal scores by document id, descending, as in trec_eval; the ranks in the file are
    not used. Exits 0 whatever the verdict, 2 on wrong usage, 3 on wrong data; with --gates as verdicts does: 0 (all
    PASS), 10 (FAIL), 11 (MARGINAL), 12 (INCONCLUSIVE or advisory).
    """
    from unimoe.analysis.analysis import Analysis
    from unimoe.analysis.from_runs import compare_runs
    from unimoe.analysis.gates.definitions import load_gates
    from unimoe.analysis.gates.judging import Refusal, exit_code
    from unimoe.analysis.run_files import RunFiles
    from unimoe.analysis.run_output import print_comparison

    files = RunFiles(
        specialist=tuple(specialist),
        joint=tuple(joint),
        qrels=qrels,
        metric=metric,
        specialist_name=specialist_name,
        joint_name=joint_name,
        dataset=dataset,
        queries=queries,
        depth=depth,
        allow=tuple(allow or ()),
    )
    registration = load_gates(gates) if gates else None
    compared = compare_runs(files, output_dir or Path(), on_read=_say_read)
    for warning in compared.warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    analysis = Analysis(compared.results, registration, alpha=alpha, iterations=iterations, seed=seed)
    print_comparison(compared, analysis, as_json=as_json)
    if output_dir is not None:
        from unimoe.analysis.report import write_report

        path = write_report(analysis)
        (stderr if as_json else stdout).print(f"\nReport: {path}", soft_wrap=True)
    if registration:
        for outcome in analysis.outcomes:
            if isinstance(outcome, Refusal):
                print_error(outcome.error)
        raise typer.Exit(exit_code(analysis.outcomes))


def _say_read(run: ScoredRun) -> None:
    stderr.print(f"read {run.path}: depth {run.depth:,}", style="dim", soft_wrap=True)
