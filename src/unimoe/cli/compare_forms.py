"""The three forms of ``unimoe compare``: a verdict on runs, a table of runs, a table of a folder's results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from unimoe.analysis.analysis import SystemComparison, in_order
from unimoe.analysis.arms import ArmPair
from unimoe.analysis.comparisons import systems_of, unknown_arm
from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.judging import Refusal, exit_code
from unimoe.analysis.gates.registration import gate_of, registered_in
from unimoe.analysis.saved_comparison import CORRECTED, MARKER, saved_comparison
from unimoe.analysis.standings import check_chosen
from unimoe.analysis.tables import Table
from unimoe.cli.compare import Options
from unimoe.cli.compare_output import Compared, as_json, table_parts, verdict_parts
from unimoe.cli.models import ModelOptions
from unimoe.cli.run_files import (
    Pattern,
    groups_in,
    name_systems,
    once,
    select_datasets,
    select_keys,
    select_runs,
    two_arms,
)
from unimoe.cli.scored_systems import as_run_files, is_scored
from unimoe.core.console import print_error, stderr, stdout
from unimoe.core.errors import DataError, UsageError, refuse_missing
from unimoe.metrics import DEFAULT_METRICS, canonical_metrics
from unimoe.results.clusters import Clusters, Groups
from unimoe.results.comparability import with_metrics
from unimoe.results.folder import Results, load_all_results
from unimoe.results.runs.building import NO_FOLDER, TASK, ScoredSystems, score_systems
from unimoe.results.runs.scoring import ScoredRun
from unimoe.results.runs.sources import RunSource, Scoring

_METRIC = "ndcg@10"


def run(options: Options) -> int:
    """Compare what the options name, in the form that they choose, and return the command's exit code."""
    patterns = [Pattern.parse("--systems", text) for text in options.systems or []]
    if options.predictions:
        pass  # the baseline is one of the models there
    elif first := next(
        (pattern for pattern in patterns if options.baseline and pattern.name == options.baseline), None
    ):
        patterns.remove(first)
        patterns.insert(0, replace(first, option="--baseline"))
    elif options.baseline:
        patterns.insert(0, Pattern.parse("--baseline", options.baseline))
    patterns = once(patterns)
    for_models = ModelOptions(
        options.models_dir or Path("outputs", "compare"),
        config=options.config,
        override=options.override,
        max_queries=options.max_queries,
        shuffles=options.shuffles or None,
        device=options.device,
        threads=options.threads,
    )
    verdict = bool(options.specialist or options.joint)
    models = options.results is None and not verdict and any(is_scored(pattern.path) for pattern in patterns)
    if not models and (named := [*for_models.given(), *["--models-dir"] * (options.models_dir is not None)]):
        raise UsageError(f"{named[0]} is for models by name, and there are none; leave it out")
    options.refuse_contradictions(models=models)
    if verdict:
        found = _judge_runs(options)
    elif options.results is not None:
        found = _compare_folder(options, options.results)
    elif options.predictions:
        found = _compare_predictions(options, options.predictions)
    elif models:
        found = _compare_runs(options, *as_run_files(patterns, options.dataset or [], for_models))
    else:
        found = _compare_runs(options, patterns, options.dataset or [])
    # Kept before the first line is printed: a pager that quits closes the pipe, which ends the command there.
    report = None if options.output_dir is None else _keep(found, overwrite=options.overwrite)
    if options.as_json:
        plain = to_jsonable_python(as_json(options, found, verdict=verdict), inf_nan_mode="null")
        stdout.out(json.dumps(plain, ensure_ascii=False))
    else:
        for part in verdict_parts(found.table) if verdict else table_parts(options, found):
            if isinstance(part, Table):
                stdout.print(part.to_rich())
                stdout.print()
            else:
                stdout.out(part)
    if report is not None:
        (stderr if options.as_json else stdout).print(f"\nReport: {report}", soft_wrap=True)
    refuse_missing({"part": found.missing})
    if options.gates is None:
        return 0
    decisive = found.table.decisive
    for outcome in decisive:
        if isinstance(outcome, Refusal):
            print_error(outcome.error)
    return exit_code(decisive)


def _judge_runs(options: Options) -> Compared:
    """Judge a joint model against its specialist, by the runs of both."""
    names = options.specialist_name or "specialist", options.joint_name or "joint"
    specialist, joint = names
    arms, metrics = two_arms(names, options.specialist or [], options.joint or []), options.metric
    if metrics and len(metrics) > 1:
        raise UsageError(
            f"--metric {' '.join(metrics)}: a verdict is on one metric; give one, or compare --systems, which shows all"
        )
    registration, of_gates = _gates(options)
    asked = list(dict.fromkeys([*(metrics or of_gates[:1] or [_METRIC]), *of_gates]))
    about = f"{joint} against {specialist}"
    scored = _read(options, arms, options.dataset or [], about, asked, DEFAULT_METRICS, registration)
    if registration is None:
        datasets = list(dict.fromkeys(run.source.judged.dataset for run in scored.runs))
        metric, looks = scored.results.results[0].main_metric, options.looks
        try:
            settings = {"datasets": datasets, "metric": metric, "looks": looks or None, "pool_runs": options.pool_runs}
            gate = gate_of(ArmPair(TASK, specialist, joint), **settings)
        except UsageError as error:
            raise UsageError(f"--looks {' '.join(map(str, looks or []))}: {error}") from None
        registration = Registration({"interference": gate})
    judges = registration if options.output_dir is None else None
    table = _compare(options, scored.results, names, specialist, pairs="baseline", gates=judges)
    return Compared(table, scored, registration)


def _gates(options: Options) -> tuple[Registration | None, list[str]]:
    """Return the gates given, else those that the output folder has and no other comparison put there; their metrics.

    With a folder, the gates that judge are those that are registered there.
    """
    registration, folder = None if options.gates is None else load_gates(options.gates), options.output_dir
    if registration is None and folder is not None and not (options.overwrite and (folder / MARKER).exists()):
        registration = registered_in(folder)
    return registration, [gate.metric for gate in registration.gates.values()] if registration else []


def _compare_runs(options: Options, patterns: Sequence[Pattern], datasets: Sequence[str]) -> Compared:
    """Compare systems by their run files, and judge them where there are gates."""
    registration, of_gates = _gates(options)
    systems = name_systems(patterns)
    baseline = next(iter(systems)) if patterns[0].option == "--baseline" else None
    ordered = in_order(list(systems), baseline)
    main = options.metric or of_gates[:1] or [_METRIC]
    asked = list(dict.fromkeys([*main, *of_gates]))  # a gate's metric is asked for, and not hidden
    scored = _read(options, systems, datasets, f"comparison of {', '.join(ordered)}", asked, gates=registration)
    judges = registration if options.output_dir is None else None
    return Compared(_compare(options, scored.results, ordered, baseline, gates=judges), scored, registration)


def _compare_predictions(options: Options, folders: Sequence[Path]) -> Compared:
    """Compare the models of which mteb kept predictions, on every task that has judgments."""
    from unimoe.evaluation.predictions import find_predictions, prediction_sources  # mteb takes seconds to import

    registration, of_gates = _gates(options)
    predicted, problems = find_predictions(folders)
    given = {}
    if options.qrels or options.dataset:
        judged = select_datasets(options.qrels, options.dataset or [], options.relevance_level)
        tasks = {one.task for one in predicted}
        # A file of judgments needs no name where there is one task.
        given = {next(iter(tasks)) if len(tasks) == len(judged) == 1 else one.dataset: one for one in judged}
    metrics = canonical_metrics(options.metric or of_gates[:1])
    sources, without = prediction_sources(predicted, given, metrics[0] if metrics else None)
    _warn([*problems, *without])
    if not sources:
        raise DataError("no predictions that can be judged; the reasons are above")
    ordered = in_order(list(dict.fromkeys(source.system for source in sources)), options.baseline)
    scoring = Scoring(
        metrics or (_METRIC,), tuple(of_gates), options.depth, tuple(options.allow or ()), topics=options.topics
    )
    scored = _scored(options, sources, scoring, f"comparison of {', '.join(ordered)}")
    judges = registration if options.output_dir is None else None
    table = _compare(options, scored.results, ordered, options.baseline, gates=judges)
    missing = [line.partition(": ")[0] for line in (*problems, *without)]
    return Compared(table, scored, registration, missing=missing)


def _compare_folder(options: Options, folder: Path) -> Compared:
    """Compare arms of a folder of results, corrected as the comparison that it holds unless the options say how."""
    saved = saved_comparison(folder)
    allow, baseline, target = options.allow or [], options.baseline, options.output_dir
    held = load_all_results(folder, allow)
    known = systems_of(held.results)
    wanted = list(dict.fromkeys([*([baseline] if baseline else []), *(options.systems or known)]))
    for arm in wanted:
        if arm not in known:
            raise UsageError(f"--results {folder}: {unknown_arm(arm, known)}")
    ordered, keys = in_order(wanted, baseline), select_keys(held.dataset_keys, options.dataset or [])
    metrics = canonical_metrics(options.metric or [])
    chosen = [with_metrics(r, metrics) for r in held.results if r.config_name in wanted and r.key in keys]
    if options.topics:
        chosen = [r.model_copy(update={"config": r.config | {"topics": options.topics}}) for r in chosen]
    if options.pool_runs:
        if any(r.config.get("paired_seeds") for r in chosen):
            raise UsageError(
                f"--pool-runs is for runs that do not pair, and {folder} declares that they do; leave it out"
            )
        chosen = [r.model_copy(update={"config": r.config | {"pool_runs": True}}) for r in chosen]
    clusters = Clusters.read(options.clusters) if options.clusters else None
    groups = Groups.given(options.groups) if options.groups else None
    for given in filter(None, (clusters, groups)):
        given.refuse_others({first.key: first.per_query for first in held.firsts if first.key in keys}, whole=False)
    results = Results(
        target or folder, chosen, allow=allow, clusters=clusters or held.clusters, groups=groups or held.groups
    )
    _warn(results.notes(results.dataset_keys))
    how = {name: getattr(saved, name) for name in CORRECTED} if saved else {}
    if options.pairs == "baseline":  # simultaneous is about all pairs
        how.pop("simultaneous", None)
    table = _compare(options, results, ordered, baseline, **how)
    if target is not None and target.resolve() == folder.resolve():
        raise UsageError(f"--output-dir {folder} is what --results reads; choose another folder")
    return Compared(table, None, registered_in(folder), folder)


def _read(
    options: Options,
    systems: Mapping[str, Sequence[Pattern]],
    datasets: Sequence[str],
    experiment: str,
    metrics: Sequence[str],
    others: Sequence[str] = (),
    gates: Registration | None = None,
) -> ScoredSystems:
    """Read and score the run files of some systems, by a model's judgments too where options or gates name them."""
    of_gates = [gate.predicted for gate in gates.gates.values()] if gates else []
    named = (f"{dataset}={path}" for of_gate in of_gates for dataset, path in of_gate.items())
    predicted = options.predicted_qrels or list(dict.fromkeys(named))
    allow = tuple(options.allow or ())
    paired, pooled, topics = options.paired, options.pool_runs, options.topics
    scoring = Scoring(tuple(metrics), tuple(others), options.depth, allow, paired, pooled, topics)
    judged = select_datasets(
        options.qrels, datasets, options.relevance_level, options.queries, scoring.every, predicted
    )
    sources = select_runs(systems, judged, in_order=options.paired, untrained=options.untrained or [])
    return _scored(options, sources, scoring, experiment)


def _scored(options: Options, sources: Sequence[RunSource], scoring: Scoring, experiment: str) -> ScoredSystems:
    """Read and score runs, and say on stderr which were read, and what to know of them."""

    def say_read(run: ScoredRun) -> None:
        seed = "" if run.source.seed is None else f" seed {run.source.seed}"
        where = f"{run.source.system}{seed} on {run.source.judged.dataset}, depth {run.depth:,}"
        stderr.print(f"read {run.source.name}: {where}", style="dim", soft_wrap=True)

    scored = score_systems(
        sources,
        scoring,
        experiment,
        given=options.recorded,
        output_dir=options.output_dir or NO_FOLDER,
        clusters=Clusters.read(options.clusters) if options.clusters else None,
        groups=Groups.given(options.groups) if options.groups else groups_in(options.queries, sources),
        on_run=say_read,
    )
    _warn(scored.warnings)
    return scored


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def _compare(
    options: Options, results: Results, systems: Sequence[str], baseline: str | None, **form: Any
) -> SystemComparison:
    """Compare systems as the options say, which override what the form of the command says."""
    names = ("pairs", "correction", "family", "iterations", "seed")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    given |= {"simultaneous": True} if options.simultaneous else {}
    if options.chosen:
        check_chosen(options.settings_tried, systems)
        given["chosen"] = options.settings_tried
    return SystemComparison(results, systems, baseline, **{"pairs": "all"} | form | given)


def _keep(found: Compared, *, overwrite: bool) -> Path:
    """Keep the comparison in the output folder of its results, and return its report."""
    from unimoe.analysis.report import SUBFOLDER, keep_comparison

    folder = found.table.results.output_dir
    keep_comparison(found.table, folder, found.gates, overwrite=overwrite, source=found.source)
    return folder / SUBFOLDER / "report.html"
