"""``unimoe compare``: a verdict or a table of systems, from runs or a folder of results; and its options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import unimoe
from unimoe.cli.options import (
    Depth,
    Device,
    Iterations,
    MaxQueries,
    Override,
    RelevanceLevel,
    ResamplingSeed,
    Shuffles,
    Threads,
)
from unimoe.core.console import stderr
from unimoe.core.errors import UsageError

_OF_TABLES = ("systems", "baseline", "results", "pairs", "layout", "chosen", "simultaneous")
_OF_VERDICTS = ("looks", "specialist_name", "joint_name")
_OF_RUNS = ("qrels", "predicted_qrels", "relevance_level", "queries", "depth", "paired", "untrained")
_ARMS = ("specialist", "joint", "baseline", "systems", "predictions", "dataset")
# What says what was compared.
_GIVEN = ("qrels", "predicted_qrels", "relevance_level", "depth", "allow", "looks", "clusters", "topics", "groups")
_RECORDED = (*_ARMS, "untrained", *_GIVEN)
_EXAMPLE = {"bm25": "", "specialist": "-*", "joint": "-*", "zero_shot": ""}  # and how a system's seeds are named


@dataclass(frozen=True)
class Options:
    """What ``unimoe compare`` takes; the command has these fields, with their types and help, as its options."""

    example: Annotated[
        bool, typer.Option("--example", help="Compare runs that ship with unimoe, and print the options that do it.")
    ] = False
    specialist: Annotated[
        list[str] | None, typer.Option(help="Run files of the specialist, one per seed, or a pattern; may be .gz.")
    ] = None
    joint: Annotated[list[str] | None, typer.Option(help="Run files of the joint model, one per seed.")] = None
    systems: Annotated[
        list[str] | None,
        typer.Option(
            help="Systems, each as [NAME=]PATTERN: the files that match are its seeds, {dataset} is the dataset's "
            "name. Also models as --model names them, and folders of results. With --results, names of arms."
        ),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(help="The system to compare the others with: as in --systems, or the NAME of one given there."),
    ] = None
    predictions: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folders that mteb.evaluate kept predictions in: every model on every task, by the task's own data "
            "and main measure. --dataset TASK=QRELS gives the judgments of a task that mteb cannot load."
        ),
    ] = None
    results: Annotated[Path | None, typer.Option(help="A folder of results to take the systems from.")] = None
    qrels: Annotated[Path | None, typer.Option(help="Judgments in TREC or BEIR layout; may be .gz.")] = None
    predicted_qrels: Annotated[
        list[str] | None,
        typer.Option(
            help="Judgments by a model of all queries, where --qrels has those of people on a random sample: few human "
            "labels then tell as much as many. [NAME=]FILE, for each dataset that has some; unimoe label makes them."
        ),
    ] = None
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Datasets, each as [NAME=]QRELS; with --qrels what to call the one dataset, with --results names; "
            "with models collections, such as scifact or path:DIR@dev."
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="ndcg_cut_10, recip_rank, map, or any measure of ir_measures, for example RBP(rel=2); by default "
            "ndcg@10. Each metric that all systems hold by query is tested; the first heads the tables."
        ),
    ] = None
    pairs: Annotated[
        Literal["all", "baseline"] | None,
        typer.Option(
            help="Systems to test: every two (all, the default), or each against the baseline, which has more power."
        ),
    ] = None
    layout: Annotated[
        Literal["systems", "datasets"] | None,
        typer.Option(
            help="The table by dataset alone, with the average, on the first metric (datasets), or also that of all "
            "metrics, with a block for each dataset (systems, the default)."
        ),
    ] = None
    correction: Annotated[
        Literal["holm", "bh", "bonferroni", "none"] | None,
        typer.Option(
            help="How p is corrected for the tests of a family; bh is Benjamini and Hochberg's. By default holm, or as "
            "the comparison that --results holds."
        ),
    ] = None
    family: Annotated[
        Literal["table", "dataset", "baseline"] | None,
        typer.Option(
            help="The tests of a metric that are corrected together: all of them (table, the default), those on one "
            "dataset, or with --pairs baseline those against it."
        ),
    ] = None
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Add intervals that hold for every two systems together, and ranks.")
    ] = False
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            help="How a system was chosen: NAME=dev, or by its scores on these data NAME=K from K settings, NAME=A,B,C "
            "from settings compared here. The output says so, and corrects its tests for the latter."
        ),
    ] = None
    paired: Annotated[
        bool, typer.Option("--paired", help="Run i of all systems shares data order and initial weights.")
    ] = False
    pool_runs: Annotated[
        bool,
        typer.Option(
            "--pool-runs",
            help="Systems are of one recipe and vary alike from run to run: the runs of all estimate one variance, "
            "which has more power with few seeds. The output says so.",
        ),
    ] = False
    untrained: Annotated[
        list[str] | None,
        typer.Option(
            help="Names of systems that are not one of many trainings, such as BM25, a hosted model or a public "
            "checkpoint: one run each, and nothing is said of other seeds. What evaluate wrote is known as such."
        ),
    ] = None
    looks: Annotated[
        list[int] | None,
        typer.Option(
            help="Numbers of seeds at which you look, fixed before: the first look with a label decides, and each asks "
            "for more confidence, so that looking again does no harm."
        ),
    ] = None
    specialist_name: Annotated[str | None, typer.Option(help="What to call the specialist.")] = None
    joint_name: Annotated[str | None, typer.Option(help="What to call the joint model.")] = None
    relevance_level: RelevanceLevel = None
    queries: Annotated[
        str | None,
        typer.Option(
            help="Query texts, lines of id, tab, text, or BEIR's queries.jsonl, to show with the queries that differ."
        ),
    ] = None
    clusters: Annotated[
        Path | None,
        typer.Option(
            help="Clusters of queries, lines of query id, tab, cluster id, such as paraphrases or topics of one user: "
            "intervals and tests are over whole clusters. By default those that --results holds."
        ),
    ] = None
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Groups of queries, lines of query id, tab, group: differences or TIR by group, and a test of whether "
            "they vary between groups. By default the `group` of each line of --queries, or those that --results holds."
        ),
    ] = None
    topics: Annotated[
        Literal["shared", "separate"] | None,
        typer.Option(
            help="Whether queries with one id or one text on several datasets are one topic, drawn with all of them "
            "(shared, the default), or ids coincide by chance (separate). Texts tell where they are known."
        ),
    ] = None
    depth: Depth = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What is refused otherwise; the output says so. queries: compare on the judged queries that all runs "
            "have. zeros: judged queries that a run lacks count 0 there, as trec_eval -c counts them. depth: runs of "
            "different depth. duplicates: the same run given twice. ranks: ranks that contradict scores. With "
            "--results as in analyze_results.py."
        ),
    ] = None
    gates: Annotated[
        Path | None, typer.Option(help="Judge by a gate file, whose arms and datasets are named as here.")
    ] = None
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the comparison as results, with tables, figures and a report in its analysis/."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another comparison in --output-dir.")] = False
    config: Annotated[Path | None, typer.Option(help="Settings of the models and their evaluation.")] = None
    override: Override = None
    max_queries: MaxQueries = None
    shuffles: Shuffles = 0
    models_dir: Annotated[
        Path | None, typer.Option(help="Where models' results go, a folder each; by default outputs/compare.")
    ] = None
    device: Device = None
    threads: Threads = None
    iterations: Iterations = 10_000
    seed: ResamplingSeed = 0
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False

    @property
    def recorded(self) -> list[str]:
        """The options that say what was compared, as the command line has them."""
        named = {name: value for name in _RECORDED if (value := getattr(self, name))}
        given = [
            f"{_flag(name)} {' '.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in named.items()
        ]
        return [*given, *["--paired"] * self.paired, *["--pool-runs"] * self.pool_runs]

    @property
    def settings_tried(self) -> dict[str, str | int | list[str]]:
        """What ``--chosen`` says of each system."""
        if wrong := [text for text in self.chosen or [] if "=" not in text.strip("=")]:
            raise UsageError(f"--chosen {wrong[0]}: write NAME=dev, or NAME=K with the number of settings tried")
        given = [text.rpartition("=")[::2] for text in self.chosen or []]
        if len(dict(given)) < len(given):
            raise UsageError("--chosen: names a system twice; give each once")
        return {name: int(of) if of.isdecimal() else of if of == "dev" else of.split(",") for name, of in given}

    def with_example(self) -> Options:
        """Return the options with the runs of the bundled experiment, which ship with unimoe."""
        if own := [name for name in (*_ARMS, "results", "qrels") if getattr(self, name)]:
            raise UsageError(f"--example brings runs of its own; leave it out, or {_flag(own[0])}")
        runs = Path(unimoe.__file__).parent / "data" / "example_runs"
        systems = [f"{name}={runs / name}{part}.trec.gz" for name, part in _EXAMPLE.items()]
        untrained = self.untrained or ["bm25", "zero_shot"]
        shown = replace(self, baseline=systems[0], systems=systems[1:], untrained=untrained)
        return replace(shown, qrels=runs / "qrels.gz", dataset=["apidocs"])

    def refuse_contradictions(self, *, models: bool) -> None:
        """Refuse options that mean nothing in the form of the command that the others choose."""
        if self.overwrite and self.output_dir is None:
            raise UsageError("--overwrite replaces what --output-dir holds; give that too")
        if self.looks and self.gates:
            raise UsageError("--looks belongs to a gate without a file; write `looks` into the gate file")
        wrong: Sequence[str]
        if self.specialist or self.joint:
            wrong, because = _OF_TABLES, "--specialist and --joint ask for a verdict on two arms"
        elif self.predictions:
            wrong, because = (
                (
                    *_OF_VERDICTS,
                    *("systems", "results", "paired", "pool_runs", "untrained", "queries", "predicted_qrels"),
                ),
                "--predictions are systems",
            )
        elif self.results:
            wrong, because = ("gates", *_OF_VERDICTS, *_OF_RUNS), "--results compares results as they are"
        elif models and (self.qrels or self.predicted_qrels):
            wrong, because = (
                ("qrels", "predicted_qrels"),
                "models are evaluated on collections, which have their judgments",
            )
        elif self.systems or self.baseline:
            wrong, because = _OF_VERDICTS, "--systems asks for a table, which --gates FILE judges"
        else:
            raise UsageError(
                "nothing to compare; give --specialist and --joint, --systems, --predictions, or --results"
            )
        if name := next((name for name in wrong if getattr(self, name)), None):
            raise UsageError(f"{_flag(name)} does not belong here: {because}; leave one of them out")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
