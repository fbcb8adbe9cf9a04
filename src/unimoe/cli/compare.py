"""``unimoe compare``: a verdict, or a table of systems, from TREC runs alone or from any folder of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from typer.core import TyperCommand

from unimoe.cli.models import ModelOptions
from unimoe.cli.options import (
    Depth,
    Device,
    Iterations,
    MaxQueries,
    Override,
    RelevanceLevel,
    ResamplingSeed,
    Threads,
)
from unimoe.core.errors import UsageError

Options: TypeAlias = Mapping[str, object]

_OUTPUTS = Path("outputs", "compare")


class SeveralValues(TyperCommand):
    """A command whose repeatable options also take several values at once: ``--joint b1.trec b2.trec``.

    Such a command has no arguments, so every word up to the next option belongs to the option before it. A file whose
    name begins with ``-`` is given as ``./-name``.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Spell out repeated options, then parse as usual."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, repeated(args, names))


class PairsOption(StrEnum):
    """Which systems are compared with which."""

    ALL = "all"
    BASELINE = "baseline"


def repeated(arguments: Sequence[str], names: set[str]) -> list[str]:
    """Return the same arguments with an option's name before each of its values: ``--a x y`` becomes ``--a x --a y``.

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
    specialist: Annotated[
        list[str] | None, typer.Option(help="Run files of the specialist, one per seed, or a pattern; may be .gz.")
    ] = None,
    joint: Annotated[list[str] | None, typer.Option(help="Run files of the joint model, one per seed.")] = None,
    systems: Annotated[
        list[str] | None,
        typer.Option(
            help="Systems, each as [NAME=]PATTERN: the files that match are its seeds, {dataset} is the dataset's "
            "name. Also models as --model names them, and folders of results. With --results, names of arms."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The system to compare the others with, as in --systems.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="A folder of results to take the systems from.")] = None,
    qrels: Annotated[Path | None, typer.Option(help="Judgments in TREC or BEIR layout; may be .gz.")] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Datasets, each as [NAME=]QRELS; with --qrels what to call the one dataset, with --results names; "
            "with models collections, such as scifact or path:DIR@dev."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="ndcg_cut_10, recip_rank, map, or any measure of ir_measures, for example RBP(rel=2); by default "
            "ndcg@10. Of systems several: the first is tested, the others are shown."
        ),
    ] = None,
    pairs: Annotated[
        PairsOption | None,
        typer.Option(
            help="Systems to test: every two (all, the default), or each against the baseline, which has more power."
        ),
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Run i of all systems shares data order and initial weights.")
    ] = False,
    looks: Annotated[
        list[int] | None,
        typer.Option(
            help="Numbers of seeds at which you look, fixed before: the first look with a label decides, and each asks "
            "for more confidence, so that looking again does no harm."
        ),
    ] = None,
    specialist_name: Annotated[str | None, typer.Option(help="What to call the specialist.")] = None,
    joint_name: Annotated[str | None, typer.Option(help="What to call the joint model.")] = None,
    relevance_level: RelevanceLevel = None,
    queries: Annotated[
        str | None, typer.Option(help="Query texts, lines of id, tab, text, to show with the queries that differ.")
    ] = None,
    depth: Depth = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What is refused otherwise; the output says so. queries: compare on the judged queries that all runs "
            "have. zeros: judged queries that a run lacks count 0 there, as trec_eval -c counts them. depth: runs of "
            "different depth. duplicates: the same run given twice. With --results as in analyze_results.py."
        ),
    ] = None,
    gates: Annotated[
        Path | None, typer.Option(help="Judge by a gate file, whose arms and datasets are named as here.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the comparison as results, with tables, figures and a report in its analysis/."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another comparison in --output-dir.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings of the models and their evaluation.")] = None,
    override: Override = None,
    max_queries: MaxQueries = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Where models' results go, a folder each; by default outputs/compare.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
    iterations: Iterations = 10_000,
    seed: ResamplingSeed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Compare systems from their TREC runs: a verdict on a joint model, or a table of who beats whom.

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
    from unimoe.cli import compare_forms as forms
    from unimoe.cli.compared import as_runs, names_models

    request = forms.Request(
        specialist=specialist or [],
        joint=joint or [],
        names=(specialist_name or "specialist", joint_name or "joint"),
        gates=gates,
        looks=looks or [],
        systems=systems or [],
        baseline=baseline,
        pairs=pairs.value if pairs else "all",
        metrics=metric or [],
        qrels=qrels,
        dataset=dataset or [],
        relevance_level=relevance_level,
        queries=queries,
        depth=depth,
        allow=allow or [],
        paired=paired,
        output_dir=output_dir,
        overwrite=overwrite,
        iterations=iterations,
        seed=seed,
        as_json=as_json,
    )
    of_table: Options = {"--systems": systems, "--baseline": baseline, "--results": results, "--pairs": pairs}
    of_verdict: Options = {
        "--gates": gates,
        "--looks": looks,
        "--specialist-name": specialist_name,
        "--joint-name": joint_name,
    }
    of_runs: Options = {"--qrels": qrels, "--relevance-level": relevance_level, "--queries": queries, "--depth": depth}
    of_models = ModelOptions(
        models_dir or _OUTPUTS,
        config=config,
        override=override,
        max_queries=max_queries,
        device=device,
        threads=threads,
    )
    models = results is None and not (specialist or joint) and names_models(baseline, systems or [])
    if (given := of_models.given()) and not models:
        raise UsageError(f"{given[0]} is for models by name, and there are none; leave it out")
    if overwrite and output_dir is None:
        raise UsageError("--overwrite replaces what --output-dir holds; give that too")
    if looks and gates:
        raise UsageError("--looks belongs to a gate without a file; write `looks` into the gate file")
    if specialist or joint:
        _refuse(of_table, "--specialist and --joint ask for a verdict on two arms")
        raise typer.Exit(forms.judge_runs(request))
    if results is not None:
        _refuse({**of_verdict, **of_runs, "--paired": paired}, "--results compares results as they are")
        forms.tabulate_folder(request, results)
    elif systems or baseline:
        _refuse(of_verdict, "--systems asks for a table, and a gate judges with --specialist and --joint")
        if models:
            _refuse({"--qrels": qrels}, "models are evaluated on collections, which have their judgments")
            runs = as_runs(baseline, systems or [], dataset or [], of_models)
            request = replace(request, baseline=runs.baseline, systems=runs.systems, dataset=runs.datasets)
        forms.tabulate_runs(request)
    else:
        raise UsageError("nothing to compare; give --specialist and --joint, --systems, or --results")


def _refuse(options: Options, because: str) -> None:
    """Refuse options that mean nothing in the form of the command that was chosen."""
    for name, value in options.items():
        if value:
            raise UsageError(f"{name} does not belong here: {because}; leave one of them out")
