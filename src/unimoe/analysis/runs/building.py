"""Results made of scored runs, so that runs from anywhere are judged, shown and kept in a folder as evaluations are."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.registration import REGISTERED, register, registered_in
from unimoe.analysis.loading import Details, Results, Seed
from unimoe.analysis.runs.scoring import (
    ScoredRun,
    Scoring,
    caveats_of,
    compared_queries,
    hidden_metrics,
    score_source,
    warnings_of,
)
from unimoe.analysis.runs.selection import RunSource
from unimoe.analysis.tables.cells import gathered
from unimoe.errors import DataError, UsageError
from unimoe.io import hash_json, read_json, write_sealed
from unimoe.metrics import computable_metrics
from unimoe.query_details import DrillDown, drilldown_path, read_drilldown
from unimoe.results import EvalResult, Identity, Provenance, Task, by_query_id, result_files, result_path, write_result

TASK: Task = "retrieval"

MARKER = "comparison.json"  # says what a folder compares, and that nothing else made the results there

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
    for of_dataset in of_datasets.values():
        here = []
        for source in of_dataset:
            here.append(score_source(source, scoring))
            on_run(here[-1])
        caveats, counted = caveats_of(here, scoring), compared_queries(here, scoring)
        warnings += warnings_of(here, scoring)
        hidden = hidden_metrics(here, scoring)
        metrics = [metric for metric in scoring.every if metric not in hidden]
        for run in here:
            values = {metric: {query_id: run.per_query[metric][query_id] for query_id in counted} for metric in metrics}
            result = _result(run, values, scoring, experiment, caveats, given)
            results.append(result)
            details[result.config_name, result.seed, result.key] = {q: run.details[q] for q in counted}
        runs += here
    allow = [name for name in scoring.allow if name == "duplicates"]
    found = Results(output_dir, results, allow=allow, details=details)
    return ScoredSystems(found, runs, list(dict.fromkeys(warnings)))


def keep(
    results: Results, gates: Registration | None, *, overwrite: bool, source: Path | None = None
) -> Registration | None:
    """Write results to their ``output_dir``, with the gates that judge them, and return the gates registered there.

    Sidecars come from the folder ``source`` where the results hold no details of queries.

    Raises:
        DataError: the folder holds results of something else, or another comparison that ``overwrite`` does not allow
            to replace.
    """
    folder = results.output_dir
    facts = {  # what makes two comparisons the same
        "gates": None if gates is None else {name: gate.model_dump(mode="json") for name, gate in gates.gates.items()},
        "results": {_place(result): _content(result) for result in results.everything},
    }
    if (folder / MARKER).exists():
        there = read_json(folder / MARKER)
        if not isinstance(there, dict) or not isinstance(there.get("results"), dict):
            raise DataError(f"{folder / MARKER}: not what a comparison writes; choose another --output-dir")
        difference = _difference(there, facts)
        if difference and not overwrite:
            raise DataError(
                f"{folder} holds another comparison: {difference}; choose another --output-dir, or --overwrite"
            )
        if difference:
            _remove(folder, there["results"])
    elif result_files(folder):
        raise DataError(f"{folder} holds results that no comparison made; choose another --output-dir")
    if gates is not None and not (folder / MARKER).exists():
        register(gates, folder)
    write_sealed(folder / MARKER, facts)
    for result in results.everything:
        write_result(folder, result, _detail(results, result, source))
    return registered_in(folder)


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
            base_model=None,
            checkpoint="none",
            split=Path(judged.name).name,
            first_stage="the run files",
            depth=run.depth,
            pool=None,
            prompt=None,
            max_queries=None,
        ),
        training=None,
        config={"paired_seeds": scoring.paired},
        provenance=Provenance(
            created=run.modified,  # a run says nothing of its making but when it was written: is a gate older?
            git_commit=None,
            git_dirty=None,
            python=platform.python_version(),
            platform=f"{platform.system()}-{platform.machine()}",
            packages={name: version(name) for name in _PACKAGES},
            device="none",
            dtype=None,
            hashes={"run": run.digest, "qrels": judged.content_hash},
            token_budget=None,
            wall_time_s=0.0,
            items_per_s=None,
            given=list(given),
        ),
    )


def _detail(results: Results, result: EvalResult, source: Path | None) -> DrillDown | None:
    if results.details:
        return DrillDown(queries=dict(results.details[result.config_name, result.seed, result.key]))
    there = None if source is None else source / _place(result)
    return read_drilldown(there) if there and drilldown_path(there).exists() else None


def _place(result: EvalResult) -> str:
    """Return where a result lies below the folder."""
    return result_path(Path(), result.config_name, result.seed, result.task, result.dataset).as_posix()


def _content(result: EvalResult) -> dict[str, Any]:
    hashes = result.provenance.hashes
    return {
        "run": hashes.get("run") or hashes.get("checkpoint"),
        "qrels": hashes.get("qrels"),
        "main metric": result.main_metric,
        "metrics": sorted(result.aggregate),
        "relevance level": result.relevance_level,
        "paired seeds": result.config.get("paired_seeds"),
        **result.identity.model_dump(),
        "caveats": result.caveats,
        "scores": hash_json([result.per_query, result.per_query_metrics]),
    }


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Name the first difference of two comparisons; empty where they are the same."""
    held, wanted = there["results"], here["results"]
    for what, places in (("lacks", wanted.keys() - held.keys()), ("also holds", held.keys() - wanted.keys())):
        if places:
            return f"it {what} {min(places)}"
    for place, content in wanted.items():
        for name, value in content.items():
            if held[place].get(name) != value:
                return f"{name} of {place} is {held[place].get(name)!r} there, {value!r} here"
    return "" if there.get("gates") == here["gates"] else f"{REGISTERED} holds other gates"


def _remove(folder: Path, places: Mapping[str, Any]) -> None:
    """Remove the results and gates of a comparison; ``analysis`` is replaced when it is written again."""
    for path in result_files(folder):
        if path.relative_to(folder).as_posix() in places:
            path.unlink()
            drilldown_path(path).unlink(missing_ok=True)
            for parent in path.parents[:4]:
                if not any(parent.iterdir()):
                    parent.rmdir()
    (folder / REGISTERED).unlink(missing_ok=True)
    (folder / MARKER).unlink(missing_ok=True)
