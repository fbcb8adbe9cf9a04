"""Results made of TREC runs and qrels, so that runs from anywhere can be judged as evaluations are.

One file is one seed, in the order given: seed 1 is the first file of either arm.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from unimoe.analysis.drilldown import DetailedResults, Details
from unimoe.analysis.loading import Pair
from unimoe.analysis.run_checks import caveats_of, compared_queries, refuse_wrong_wishes, uneven, warnings_of
from unimoe.analysis.run_files import RunFiles, ScoredRun, house_metric, read_queries, score_run_at
from unimoe.errors import DataError
from unimoe.io import hash_file
from unimoe.metrics import DEFAULT_METRICS
from unimoe.results import EvalResult, Identity, Provenance, QueryDetail, by_query_id
from unimoe.trec import Qrels, read_qrels

_PACKAGES = ("unimoe", "numpy", "scipy", "pytrec-eval-terrier")


@dataclass(frozen=True)
class ComparedRuns:
    """Two arms, ready for the analysis.

    Attributes:
        results: one for each run file; what was allowed is among their caveats.
        pair: the two arms.
        runs: what was read, by arm, in the order given.
        warnings: what refuses nothing, but should be known before the numbers are believed.
    """

    results: DetailedResults
    pair: Pair
    runs: dict[str, tuple[ScoredRun, ...]]
    warnings: tuple[str, ...]


def compare_runs(
    files: RunFiles, output_dir: Path, on_read: Callable[[ScoredRun], object] = lambda run: None
) -> ComparedRuns:
    """Read and score two arms' runs, one run at a time, and refuse what cannot be compared.

    Args:
        files: the runs and how to judge them.
        output_dir: where a report on the results would go; nothing is written here.
        on_read: told of every run when it has been scored.

    Raises:
        UsageError: an unknown metric or allowance, a depth below 1, no files, or one name for both arms.
        DataError: a file is missing, malformed or empty; a run given twice, runs of different depth, or a run that
            lacks judged queries, unless allowed.
    """
    refuse_wrong_wishes(files)
    main = house_metric(files.metric)
    metrics = (main, *(metric for metric in DEFAULT_METRICS if metric != main))
    qrels = _judgments(files.qrels)
    texts = {} if files.queries is None else read_queries(files.queries)
    runs: dict[str, tuple[ScoredRun, ...]] = {}
    for arm, paths in files.by_arm.items():
        scored = []
        for path in paths:
            scored.append(score_run_at(path, qrels, metrics, files.depth))
            on_read(scored[-1])
        runs[arm] = tuple(scored)
    every = [run for of_arm in runs.values() for run in of_arm]
    caveats = caveats_of(every, qrels, files)
    judged = compared_queries(every, qrels, files.allow)
    shown = [metric for metric in metrics if metric == main or not uneven(every, metric)]
    numbered = [(arm, seed, run) for arm, of_arm in runs.items() for seed, run in enumerate(of_arm, start=1)]
    pair = Pair("retrieval", specialist=files.specialist_name, joint=files.joint_name)
    results = [_result(files, arm, seed, run, _values(run, shown, judged), caveats) for arm, seed, run in numbered]
    details = {(arm, seed): _details(run, qrels, judged, texts) for arm, seed, run in numbered}
    return ComparedRuns(
        results=DetailedResults(output_dir, results, [pair], details),
        pair=pair,
        runs=runs,
        warnings=tuple(warnings_of(every, files, judged, metrics, texts)),
    )


def _judgments(path: Path) -> Qrels:
    qrels = read_qrels(path)
    if not qrels:
        raise DataError(f"{path}: no line in it; there is nothing to score")
    return qrels


def _values(run: ScoredRun, metrics: Sequence[str], judged: Sequence[str]) -> dict[str, dict[str, float]]:
    return {metric: {query_id: run.per_query[metric][query_id] for query_id in judged} for metric in metrics}


def _result(
    files: RunFiles,
    arm: str,
    seed: int,
    run: ScoredRun,
    values: Mapping[str, dict[str, float]],
    caveats: Sequence[str],
) -> EvalResult:
    main, *others = values
    return EvalResult(
        config_name=arm,
        seed=seed,
        task="retrieval",
        dataset=files.dataset or Path(files.qrels.name.removesuffix(".gz")).stem,
        main_metric=main,
        aggregate={metric: math.fsum(of.values()) / len(of) for metric, of in values.items()},
        per_query=values[main],
        per_query_metrics={metric: by_query_id(values[metric]) for metric in others},
        unjudged_queries=list(run.unjudged),
        first_stage=None,
        caveats=list(caveats),
        identity=Identity(
            experiment=f"{files.joint_name} against {files.specialist_name}",
            base_model=None,
            checkpoint="none",
            split=files.qrels.name,
            first_stage="the run files",
            depth=run.depth,
            pool=None,
            prompt=None,
            max_queries=None,
        ),
        training=None,
        config={name: [str(path) for path in paths] for name, paths in files.by_arm.items()},
        provenance=_provenance(files, run),
    )


def _provenance(files: RunFiles, run: ScoredRun) -> Provenance:
    """A run tells nothing of its making but when it was written, which says whether a gate is older."""
    return Provenance(
        created=run.modified,
        git_commit=None,
        git_dirty=None,
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}",
        packages={name: version(name) for name in _PACKAGES},
        device="none",
        dtype=None,
        hashes={"run": run.digest, "qrels": hash_file(files.qrels)},
        token_budget=None,
        wall_time_s=0.0,
        items_per_s=None,
        given=_given(files),
    )


def _given(files: RunFiles) -> list[str]:
    """What was compared, as the command line has it."""
    lists = {"specialist": files.specialist, "joint": files.joint, "qrels": (files.qrels,), "allow": files.allow}
    given = [f"--{name} {' '.join(map(str, values))}" for name, values in lists.items() if values]
    return given if files.depth is None else [*given, f"--depth {files.depth}"]


def _details(run: ScoredRun, qrels: Qrels, judged: Sequence[str], texts: Mapping[str, str]) -> Details:
    return {
        query_id: QueryDetail(
            text=texts.get(query_id, ""),
            relevant={document_id: qrels[query_id][document_id] for document_id in run.ranks[query_id]},
            ranks=run.ranks[query_id],
        )
        for query_id in judged
    }
