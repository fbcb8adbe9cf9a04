"""``unimoe compare``: a verdict, or a table of systems, from TREC runs alone or from any folder of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from unimoe.cli.help import FirstOptions
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

if TYPE_CHECKING:
    from unimoe.cli.compare_forms import Patterns
    from unimoe.results.runs.building import ScoredSystems

_OF_TABLES = ("systems", "baseline", "results", "pairs", "layout")
_OF_VERDICTS = ("gates", "looks", "specialist_name", "joint_name")
_OF_RUNS = ("qrels", "relevance_level", "queries", "depth", "paired")
_ARMS = ("specialist", "joint", "baseline", "systems", "dataset")
_RECORDED = (*_ARMS, "qrels", "relevance_level", "depth", "allow", "looks")  # what says what was compared


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


def compare(
    ctx: typer.Context,
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
        str | None,
        typer.Option(help="The system to compare the others with: as in --systems, or the NAME of one given there."),
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
            "ndcg@10. Each metric that all systems hold by query is tested; the first heads the tables."
        ),
    ] = None,
    pairs: Annotated[
        Literal["all", "baseline"] | None,
        typer.Option(
            help="Systems to test: every two (all, the default), or each against the baseline, which has more power."
        ),
    ] = None,
    layout: Annotated[
        Literal["systems", "datasets"] | None,
        typer.Option(
            help="Tables of systems by metric, a block for each dataset (systems, the default), or of systems by "
            "dataset, with their average, on the first metric (datasets)."
        ),
    ] = None,
    correction: Annotated[
        Literal["holm", "bh", "bonferroni", "none"] | None,
        typer.Option(
            help="How p is corrected for the tests of a family; bh is Benjamini and Hochberg's. By default holm, or as "
            "the comparison that --results holds."
        ),
    ] = None,
    family: Annotated[
        Literal["table", "dataset", "baseline"] | None,
        typer.Option(
            help="The tests of a metric that are corrected together: all of them (table, the default), those on one "
            "dataset, or those against one baseline."
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
    from unimoe.analysis.gates.judging import exit_code
    from unimoe.analysis.saved_comparison import saved_comparison
    from unimoe.analysis.systems import compare_systems
    from unimoe.cli import compare_forms as forms
    from unimoe.cli.compare_models import as_run_files, is_scored
    from unimoe.cli.run_files import Pattern, select_datasets, select_runs, two_arms
    from unimoe.results.runs.building import score_systems
    from unimoe.results.runs.scoring import Scoring

    patterns = [Pattern.parse("--systems", text) for text in systems or []]
    if first := next((pattern for pattern in patterns if baseline and pattern.name == baseline), None):
        patterns.remove(first)
        patterns.insert(0, replace(first, option="--baseline"))
    elif baseline:
        patterns.insert(0, Pattern.parse("--baseline", baseline))
    for_models = ModelOptions(
        models_dir or Path("outputs", "compare"),
        config=config,
        override=override,
        max_queries=max_queries,
        device=device,
        threads=threads,
    )
    models = results is None and not (specialist or joint) and any(is_scored(pattern.path) for pattern in patterns)
    if (named := for_models.given()) and not models:
        raise UsageError(f"{named[0]} is for models by name, and there are none; leave it out")
    _refuse_contradictions(ctx.params, models=models)
    if models:
        patterns, dataset = as_run_files(patterns, dataset or [], for_models)

    def read(systems: Patterns, experiment: str, asked: Sequence[str], others: Sequence[str] = ()) -> ScoredSystems:
        scoring = Scoring(tuple(asked), tuple(others), depth, tuple(allow or ()), paired)
        judged = select_datasets(qrels, dataset or [], relevance_level, queries)
        sources = select_runs(systems, judged, in_order=paired)
        where = output_dir or Path()
        given = _recorded(ctx.params)
        scored = score_systems(sources, scoring, experiment, given=given, output_dir=where, on_run=forms.say_read)
        forms.warn(scored.warnings)
        return scored

    output = forms.Output(output_dir, overwrite, as_json, layout or "systems")
    saved = saved_comparison(results) if results else None
    tabulate = partial(
        compare_systems,
        pairs=pairs or "all",
        iterations=iterations,
        seed=seed,
        correction=correction or (saved.correction if saved else "holm"),
        family=family or (saved.family if saved else "table"),
    )
    if specialist or joint:
        arms = two_arms((specialist_name or "specialist", joint_name or "joint"), specialist or [], joint or [])
        analysis = forms.judge_runs(arms, metric or [], gates, looks or [], read, tabulate, output)
        if gates is not None:
            raise typer.Exit(exit_code(analysis.decisive))
    elif results is not None:
        wanted = systems or [], dataset or [], metric or [], allow or []
        forms.tabulate_folder(results, baseline, *wanted, tabulate, output)
    else:
        forms.tabulate_runs(patterns, metric or [], read, tabulate, output)


def _recorded(options: Mapping[str, Any]) -> list[str]:
    """Return the options that say what was compared, as the command line has them."""
    named = {f"--{name.replace('_', '-')}": options[name] for name in _RECORDED if options[name]}
    given = [f"{name} {' '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in named.items()]
    return [*given, "--paired"] if options["paired"] else given


def _refuse_contradictions(options: Mapping[str, Any], *, models: bool) -> None:
    """Refuse options that mean nothing in the form of the command that the others choose."""
    if options["overwrite"] and options["output_dir"] is None:
        raise UsageError("--overwrite replaces what --output-dir holds; give that too")
    if options["looks"] and options["gates"]:
        raise UsageError("--looks belongs to a gate without a file; write `looks` into the gate file")
    wrong: Sequence[str]
    if options["specialist"] or options["joint"]:
        wrong, because = _OF_TABLES, "--specialist and --joint ask for a verdict on two arms"
    elif options["results"]:
        wrong, because = (*_OF_VERDICTS, *_OF_RUNS), "--results compares results as they are"
    elif models and options["qrels"]:
        wrong, because = ("qrels",), "models are evaluated on collections, which have their judgments"
    elif options["systems"] or options["baseline"]:
        wrong, because = _OF_VERDICTS, "--systems asks for a table, and a gate judges with --specialist and --joint"
    else:
        raise UsageError("nothing to compare; give --specialist and --joint, --systems, or --results")
    for name in wrong:
        if options[name]:
            raise UsageError(f"--{name.replace('_', '-')} does not belong here: {because}; leave one of them out")
