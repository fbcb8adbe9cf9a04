"""Results made of scored runs, and the refusals, caveats and warnings that keep their comparison fair."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, some_ids
from unimoe.core.grouping import gathered
from unimoe.metrics import parse_metric
from unimoe.metrics.scoring import computable_metrics, level_note
from unimoe.results import EvalResult, Identity, Provenance, Task, by_query_id
from unimoe.results.clusters import Clusters
from unimoe.results.folder import Details, IdPairs, Results, Seed, repeats
from unimoe.results.runs.scoring import RunSource, ScoredRun, Scoring, score_source

TASK: Task = "retrieval"
NO_FOLDER = Path("(no folder)")  # of results that none holds: gates and records in the present one are not theirs

_PACKAGES = ("unimoe", "numpy", "scipy", "pytrec-eval-terrier", "ir-measures")
_OTHER_DEPTHS = "the runs end at different depths"


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
    on_run: Callable[[ScoredRun], object] = lambda run: None,
) -> ScoredSystems:
    """Read and score the runs of some systems, one run at a time, and refuse what cannot be compared.

    The results record ``experiment``, as a name of the comparison, and the options ``given`` by hand. A UsageError is a
    metric that cannot be computed here, or different numbers of runs that shall pair; a DataError what cannot be read,
    or, unless allowed, a run given twice, other depths, or judged queries that a run lacks.
    """
    of_datasets = gathered((source.judged.dataset, source) for source in sources)
    for of_dataset in of_datasets.values():  # before the files are read, which may take a while
        computable_metrics(scoring.every, of_dataset[0].judged.level)
        if scoring.paired:
            _refuse_unequal(of_dataset)
    runs: list[ScoredRun] = []
    results: list[EvalResult] = []
    details: dict[tuple[str, Seed, str], Details] = {}
    warnings: list[str] = []
    repeated: dict[str, IdPairs] = {}
    for of_dataset in of_datasets.values():
        here = []
        for source in of_dataset:
            here.append(score_source(source, scoring))
            on_run(here[-1])
        runs += here
        depths = [_depth(here, metric, scoring) for metric in scoring.metrics]
        flaws = (_duplicates(here, scoring), _queries(here, scoring), *depths, _zeros(here, scoring.main))
        caveats = [caveat for caveat in flaws if caveat]
        # All judged queries count, or with --allow queries those that every run has.
        lacking = {query_id for run in here for query_id in run.missing} if "queries" in scoring.allow else set()
        counted = [query_id for query_id in of_dataset[0].judged.qrels if query_id not in lacking]
        hidden = {m: why for m in scoring.every if m not in scoring.metrics and (why := _why_hidden(here, m))}
        warnings += _warnings(here, scoring, counted, hidden)
        for run in here:
            values = {m: {q: run.per_query[m][q] for q in counted} for m in scoring.every if m not in hidden}
            result = _result(run, values, scoring, experiment, caveats, given)
            results.append(result)
            details[result.config_name, result.seed, result.key] = {q: run.details[q] for q in counted}
        repeated[results[-1].key] = _repeated(here, counted)
    if clusters:
        clusters.refuse_others({run.source.judged.dataset: run.source.judged.qrels for run in runs})
    allow = [name for name in scoring.allow if name == "duplicates"]
    found = Results(output_dir, results, allow=allow, details=details, repeated_queries=repeated, clusters=clusters)
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


def _duplicates(runs: Sequence[ScoredRun], scoring: Scoring) -> str | None:
    """Find a run given twice, which fakes a seed or a tie; the results themselves name one that one system repeats."""
    first: dict[str, ScoredRun] = {}
    twice = []
    for run in runs:
        one = first.setdefault(run.digest, run)
        if one is not run and ("duplicates" not in scoring.allow or one.source.system != run.source.system):
            twice.append(f"{run.source.name} holds the same rankings and scores as {one.source.name}")
    return scoring.allowed("duplicates", "; ".join(twice), "give every run once") if twice else None


def _queries(runs: Sequence[ScoredRun], scoring: Scoring) -> str | None:
    """Find missing queries: to fill them with 0 in silence favours one system, to leave them out another."""
    found = "; ".join(f"{run.source.name} lacks {some_ids(run.missing)}" for run in runs if run.missing)
    if not found:
        return None
    if "zeros" in scoring.allow:
        return f"judged queries that a run lacks count 0 there (--allow zeros): {found}"
    judged = len(runs[0].source.judged.qrels)
    common = judged - len({query_id for run in runs for query_id in run.missing})
    if "queries" not in scoring.allow:
        raise DataError(
            f"judged queries without documents: {found}; give complete runs, --allow queries to compare on the "
            f"{common:,} that all runs have, or --allow zeros to count them 0 as trec_eval -c does"
        )
    if not common:
        raise DataError(f"no judged query is in every run: {found}; give runs of the same queries")
    return f"compared on the {common:,} of {judged:,} judged queries that all runs have (--allow queries): {found}"


def _zeros(runs: Sequence[ScoredRun], metric: str) -> str | None:
    """Find runs that score 0 on every query: what they say, of a joint model above all, is no finding."""
    names = ", ".join(run.source.name for run in runs if not any(run.per_query[metric].values()))
    judged = runs[0].source.judged.name
    return f"{metric} is 0 on every query in {names}: check document ids and grades in {judged}" if names else None


def _depth(runs: Sequence[ScoredRun], metric: str, scoring: Scoring) -> str | None:
    """Find rankings of different depth, where the metric looks deeper than the shallowest."""
    if _why_hidden(runs, metric) != _OTHER_DEPTHS:
        return None
    shallow, deep = (end(runs, key=lambda run: run.depth) for end in (min, max))
    found = (
        f"{shallow.source.name} ends at depth {shallow.depth:,}, {deep.source.name} at {deep.depth:,}, and {metric} "
        f"looks deeper than {shallow.depth:,}"
    )
    return scoring.allowed("depth", found, f"give runs of one depth, cut all with --depth {shallow.depth}")


def _why_hidden(runs: Sequence[ScoredRun], metric: str) -> str:
    """Return why a metric sees less of the runs, or of one of them, than its name says; empty where it does not."""
    depths, cutoff = {run.depth for run in runs}, parse_metric(metric).cutoff
    if len(depths) > 1 and (cutoff is None or cutoff > min(depths)):
        return _OTHER_DEPTHS
    return f"the runs end at depth {max(depths):,}" if max(depths) < (cutoff or 0) else ""


def _repeated(runs: Sequence[ScoredRun], counted: Sequence[str]) -> IdPairs:
    """Return the queries with the same judgments and, in every run, the same documents and scores."""
    qrels = runs[0].source.judged.qrels
    return repeats(
        ((frozenset(qrels[query_id].items()), *(run.rankings.get(query_id) for run in runs)), query_id)
        for query_id in counted
        if any(query_id in run.rankings for run in runs)
    )


def _warnings(
    runs: Sequence[ScoredRun], scoring: Scoring, counted: Sequence[str], hidden: Mapping[str, str]
) -> Iterator[str]:
    """Yield what refuses nothing, but should be known before the numbers are believed."""
    judged = runs[0].source.judged
    for run in runs:
        if run.unjudged:
            yield f"{run.source.name}: queries without judgments, left out: {some_ids(run.unjudged)}"
        if run.unordered:
            which = some_ids(run.unordered)
            yield f"{run.source.name}: queries with one score for all documents, which only their ids order: {which}"
    deepest = max(run.depth for run in runs)
    for metric in scoring.metrics:
        if deepest < (parse_metric(metric).cutoff or 0):
            yield f"{judged.dataset}: {metric} is computed on rankings that end at depth {deepest:,}"
    for why, metrics in gathered((why, metric) for metric, why in hidden.items()).items():
        yield f"{judged.dataset}: {', '.join(metrics)} not shown: {why}"
    shown = [metric for metric in scoring.every if metric not in hidden]
    if note := level_note(shown, judged.qrels, judged.stated, where=judged.name, remedy="--relevance-level 2"):
        yield note
    without = [] if judged.texts is None else [query_id for query_id in counted if query_id not in judged.texts]
    if without:
        yield f"{judged.dataset}: no text of {some_ids(without)}"


def _across(runs: Sequence[ScoredRun]) -> Iterator[str]:
    """Yield which datasets share the queries of a run, and which a system's runs do not serve."""
    datasets = list(dict.fromkeys(run.source.judged.dataset for run in runs))
    of_run = gathered((run.digest, run.source.judged.dataset) for run in runs)
    for shared in dict.fromkeys(tuple(dict.fromkeys(of)) for of in of_run.values()):
        if len(shared) > 1:
            yield (
                f"{', '.join(shared)} judge the same run: datasets that share queries are not independent, and p of "
                "their average is too small"
            )
    for system, of_system in gathered((run.source.system, run.source.judged.dataset) for run in runs).items():
        if lacking := [dataset for dataset in datasets if dataset not in of_system]:
            yield f"{system}: no run of it holds judged queries of {', '.join(lacking)}"


def _result(
    run: ScoredRun,
    values: Mapping[str, dict[str, float]],
    scoring: Scoring,
    experiment: str,
    caveats: Sequence[str],
    given: Sequence[str],
) -> EvalResult:
    source, judged = run.source, run.source.judged
    return EvalResult(
        config_name=source.system,
        seed=source.seed,
        task=TASK,
        dataset=judged.dataset,
        main_metric=scoring.main,
        aggregate={metric: math.fsum(of.values()) / len(of) for metric, of in values.items()},
        per_query=values[scoring.main],
        per_query_metrics={metric: by_query_id(of) for metric, of in values.items() if metric != scoring.main},
        unjudged_queries=run.unjudged,
        first_stage=None,
        relevance_level=judged.level,
        caveats=list(caveats),
        identity=Identity(
            experiment=experiment,
            checkpoint="none",
            split=Path(judged.name).name,
            first_stage="the run files",
            depth=run.depth,
        ),
        training=None,
        config={"paired_seeds": scoring.paired},
        provenance=Provenance(
            created=run.modified,  # a run says nothing of its making but when it was written: is a gate older?
            python=platform.python_version(),
            platform=f"{platform.system()}-{platform.machine()}",
            packages={name: version(name) for name in _PACKAGES},
            device="none",
            hashes={"run": run.digest, "qrels": judged.content_hash},
            wall_time_s=0.0,
            given=list(given),
        ),
    )
