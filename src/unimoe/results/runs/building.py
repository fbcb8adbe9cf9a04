"""Results made of scored runs, and the refusals, caveats and warnings that keep their comparison fair."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unimoe.checks import Check, lines, settled
from unimoe.checks.rankings import ties_of_systems
from unimoe.checks.runs import all_zero, incomplete, repeated, shallow, unlike_depths, why_hidden
from unimoe.core.errors import UsageError, some_ids
from unimoe.core.grouping import gathered
from unimoe.metrics import parse_metric
from unimoe.metrics.scoring import computable_metrics, level_note
from unimoe.results import EvalResult, Identity, Provenance, Task, by_query_id, package_versions
from unimoe.results.clusters import Clusters, Groups
from unimoe.results.comparability import OF_RESULT
from unimoe.results.folder import Details, Results, Seed
from unimoe.results.predicted import PredictedScores, agreement_of
from unimoe.results.runs.predicting import predicted_scores, refuse_unranked
from unimoe.results.runs.scoring import ScoredRun, score_source
from unimoe.results.runs.sources import RunSource, Scoring
from unimoe.results.topics import SEPARATE, IdPairs, repeats

TASK: Task = "retrieval"
NO_FOLDER = Path("(no folder)")  # of results that none holds: gates and records in the present one are not theirs

_PACKAGES = ("unimoe", "numpy", "scipy", "pytrec-eval-terrier", "ir-measures")


@dataclass(frozen=True)
class ScoredSystems:
    """Systems, ready for the analysis: a result for each run, and what to know before believing the numbers."""

    results: Results
    runs: list[ScoredRun]
    warnings: list[str]


def score_systems(
    sources: Sequence[RunSource],
    scoring: Scoring,
    experiment: str,
    *,
    given: Sequence[str] = (),
    output_dir: Path = NO_FOLDER,
    clusters: Clusters | None = None,
    groups: Groups | None = None,
    on_run: Callable[[ScoredRun], object] = lambda run: None,
) -> ScoredSystems:
    """Read and score the runs of some systems, one run at a time, and refuse what cannot be compared.

    The results record ``experiment``, as a name of the comparison, and the options ``given`` by hand. A UsageError is a
    metric that cannot be computed here, or different numbers of runs that shall pair; a DataError what cannot be read,
    or, unless allowed, a run given twice, other depths, or judged queries that a run lacks.
    """
    of_datasets = gathered((source.judged.dataset, source) for source in sources)
    for of_dataset in of_datasets.values():  # before the files are read, which may take a while
        computable_metrics(scoring.on(of_dataset[0].judged).every, of_dataset[0].judged.level)
        if scoring.paired:
            _refuse_unequal(of_dataset)
    asked, runs = scoring, list[ScoredRun]()
    results: list[EvalResult] = []
    details: dict[tuple[str, Seed, str], Details] = {}
    warnings: list[str] = []
    repeats_of: dict[str, IdPairs] = {}
    for of_dataset in of_datasets.values():
        judged, here, by_model = of_dataset[0].judged, list[ScoredRun](), list[ScoredRun]()
        scoring = asked.on(judged)
        for source in of_dataset:
            here.append(score_source(source, scoring))
            if source.judged.predicted:
                by_model.append(score_source(replace(source, judged=source.judged.predicted), scoring))
            on_run(here[-1])
        runs += here
        shared = list(settled(_of_all(here, scoring), scoring.allow))
        refuse_unranked(by_model, scoring.allow)
        # All judged queries count, or with --allow queries those that every run has.
        lacking = {query_id for run in here for query_id in run.missing} if "queries" in scoring.allow else set()
        counted = [query_id for query_id in of_dataset[0].judged.qrels if query_id not in lacking]
        others = {m: parse_metric(m).cutoff for m in scoring.every if m not in scoring.metrics}
        hidden = {m: why for m, cutoff in others.items() if (why := why_hidden(here, cutoff))}
        notes = [check for run in here for check in run.scores.checks if check.name != "unjudged"]
        notes = [check for check in notes if not (by_model and check.name == "unjudged_queries")]
        warnings += lines([*notes, *_facts(here, scoring, counted, hidden)], "note")
        shown = [m for m in scoring.every if m not in hidden]
        scores = [{m: {q: run.scores.per_query[m][q] for q in counted} for m in shown} for run in here]
        predicted, brought = list[PredictedScores](), list[Check]()
        if by_model:
            systems, agreement = (
                [run.system for run in here],
                agreement_of(judged.qrels, by_model[0].source.judged.qrels),
            )
            of_model = [run.scores.per_query for run in by_model]
            predicted, brought = predicted_scores(systems, scores, of_model, by_model[0].source.judged, agreement)
            brought += by_model[0].source.judged.checks
        for place, (run, values) in enumerate(zip(here, scores, strict=True)):
            own = [check for check in run.scores.checks if check.name != "ties"]
            checks = [*shared, *brought, *own]
            result = _result(run, values, scoring, experiment, checks, given, predicted[place] if predicted else None)
            results.append(result)
            details[result.config_name, result.seed, result.key] = {q: run.details[q] for q in counted}
        repeats_of[results[-1].key] = _repeated(here, counted)
    judged_by_run = [run.source.judged for run in runs]
    for of_queries in filter(None, (clusters, groups)):
        of_queries.refuse_others({one.dataset: (one.predicted or one).qrels for one in judged_by_run})
    allow = [name for name in scoring.allow if name == "duplicates"]
    found = Results(output_dir, results, None, allow, details, repeats_of, clusters, groups)
    warnings += found.notes(found.dataset_keys)
    warnings += _across(runs)
    return ScoredSystems(found, runs, list(dict.fromkeys(warnings)))


def _refuse_unequal(sources: Sequence[RunSource]) -> None:
    """Refuse runs that cannot pair since two systems have different numbers of them; a single run pairs with none."""
    numbers = Counter(source.system for source in sources)
    several = {system: number for system, number in numbers.items() if number > 1}
    if len(set(several.values())) > 1:
        held = ", ".join(f"{number} of {system}" for system, number in several.items())
        raise UsageError(
            f"--paired: runs that pair are equal in number, here are {held} on {sources[0].judged.dataset}; give each "
            "system one of every seed, or leave --paired out"
        )


def _of_all(runs: Sequence[ScoredRun], scoring: Scoring) -> Iterator[Check]:
    """Yield what keeps the runs on one dataset from a fair comparison."""
    judged = runs[0].source.judged
    yield from repeated(runs, scoring.allow)
    yield from incomplete(runs, len(judged.qrels), scoring.allow)
    for metric in scoring.metrics:
        yield from unlike_depths(runs, metric, parse_metric(metric).cutoff)
    of_systems = ((run.system, run.scores.per_query[scoring.main].values(), run.scores.checks) for run in runs)
    yield from ties_of_systems(of_systems, scoring.main, judged.dataset)
    zero = [run.name for run in runs if not any(run.scores.per_query[scoring.main].values())]
    yield from all_zero(zero, scoring.main, judged.name)


def _repeated(runs: Sequence[ScoredRun], counted: Sequence[str]) -> IdPairs:
    """Return the queries with the same judgments and, in every run, the same documents and scores."""
    qrels = runs[0].source.judged.qrels
    return repeats(
        ((frozenset(qrels[query_id].items()), *(run.rankings.get(query_id) for run in runs)), query_id)
        for query_id in counted
        if any(query_id in run.rankings for run in runs)
    )


def _facts(
    runs: Sequence[ScoredRun], scoring: Scoring, counted: Sequence[str], hidden: Mapping[str, str]
) -> Iterator[Check]:
    """Yield what should be known of one dataset's metrics and texts before the numbers are believed."""
    judged = runs[0].source.judged
    cutoffs = {metric: parse_metric(metric).cutoff for metric in scoring.metrics}
    by_reason = gathered((why, metric) for metric, why in hidden.items())
    yield from shallow(judged.dataset, max(run.depth for run in runs), cutoffs, by_reason)
    shown = [metric for metric in scoring.every if metric not in hidden]
    if "gm_map" in shown:
        line = f"{judged.dataset}: gm_map is compared as its logarithm, the mean of log(map) over queries"
        yield Check("gm_map", "note", line)
    if note := level_note(shown, judged.qrels, judged.stated, where=judged.name, remedy="--relevance-level 2"):
        yield Check("relevance_level", "note", note)
    without = [] if judged.texts is None else [query_id for query_id in counted if query_id not in judged.texts]
    if without:
        yield Check("texts", "note", f"{judged.dataset}: no text of {some_ids(without)}")


def _across(runs: Sequence[ScoredRun]) -> Iterator[str]:
    """Yield which datasets a system's runs do not serve."""
    datasets = list(dict.fromkeys(run.source.judged.dataset for run in runs))
    for system, of_system in gathered((run.source.system, run.source.judged.dataset) for run in runs).items():
        if lacking := [dataset for dataset in datasets if dataset not in of_system]:
            yield f"{system}: no run of it holds judged queries of {', '.join(lacking)}"


def _result(
    run: ScoredRun,
    values: Mapping[str, dict[str, float]],
    scoring: Scoring,
    experiment: str,
    checks: Sequence[Check],
    given: Sequence[str],
    predicted: PredictedScores | None = None,
) -> EvalResult:
    source, judged = run.source, run.source.judged
    hashes = {"run": run.digest, "qrels": judged.content_hash}
    return EvalResult(
        config_name=source.system,
        seed=source.seed,
        task=TASK,
        dataset=judged.dataset,
        main_metric=scoring.main,
        aggregate={
            metric: predicted.mean(metric, of) if predicted else math.fsum(of.values()) / len(of)
            for metric, of in values.items()
        },
        per_query=values[scoring.main],
        per_query_metrics={metric: by_query_id(of) for metric, of in values.items() if metric != scoring.main},
        unjudged_queries=[q for q in run.scores.unjudged_queries if not (predicted and q in predicted.queries)],
        first_stage=None,
        relevance_level=judged.level,
        caveats=[check.line for check in checks if check.unfit],
        checks=[check for check in checks if check.name != OF_RESULT],
        otherwise={} if predicted else run.scores.otherwise(values[scoring.main]),
        predicted=predicted,
        identity=Identity(
            experiment=experiment,
            checkpoint="none",
            split=Path(judged.name).name,
            first_stage="the run files",
            depth=run.depth,
        ),
        training=None,
        config={"paired_seeds": scoring.paired}
        | ({"pool_runs": True} if scoring.pool_runs else {})
        | ({"topics": SEPARATE} if scoring.topics == SEPARATE else {}),
        provenance=Provenance(
            created=run.modified,  # a run says nothing of its making but when it was written: is a gate older?
            python=platform.python_version(),
            platform=f"{platform.system()}-{platform.machine()}",
            packages=package_versions(_PACKAGES),
            device="none",
            hashes=hashes | ({"predicted_qrels": predicted.hash} if predicted else {}),
            wall_time_s=0.0,
            given=list(given),
        ),
    )
