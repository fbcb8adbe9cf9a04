"""Results made of scored runs, so that runs from anywhere are judged and shown as evaluations are."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from unimoe.core.errors import UsageError
from unimoe.core.grouping import gathered
from unimoe.metrics.scoring import computable_metrics
from unimoe.results import EvalResult, Identity, Provenance, Task, by_query_id
from unimoe.results.folder import Details, IdPairs, Results, Seed
from unimoe.results.runs.scoring import (
    ScoredRun,
    Scoring,
    caveats_of,
    compared_queries,
    hidden_metrics,
    repeated_queries,
    score_source,
    warnings_of,
)
from unimoe.results.runs.sources import RunSource

TASK: Task = "retrieval"

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
    output_dir: Path = Path(),
    on_run: Callable[[ScoredRun], object] = lambda run: None,
) -> ScoredSystems:
    """Read and score the runs of some systems, one run at a time, and refuse what cannot be compared.

    The results record ``experiment``, as a name of the comparison, and the options ``given`` by hand.

    Raises:
        UsageError: a metric that cannot be computed here, or different numbers of runs that shall pair.
        DataError: a file cannot be read; a run given twice, runs of different depth, or a run that lacks judged
            queries, unless allowed.
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
        caveats, counted = caveats_of(here, scoring), compared_queries(here, scoring)
        warnings += warnings_of(here, scoring)
        hidden = hidden_metrics(here, scoring)
        for run in here:
            values = {m: {q: run.per_query[m][q] for q in counted} for m in scoring.every if m not in hidden}
            result = _result(run, values, scoring, experiment, caveats, given)
            results.append(result)
            details[result.config_name, result.seed, result.key] = {q: run.details[q] for q in counted}
        repeated[results[-1].key] = repeated_queries(here, counted)
    allow = [name for name in scoring.allow if name == "duplicates"]
    found = Results(output_dir, results, allow=allow, details=details, repeated_queries=repeated)
    warnings += found.notes(found.dataset_keys)
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
