"""The results of one output folder: which evaluations are done, which must be refused, and how one is written.

The rule is the same for every kind of result. A spec is done when the result file at its place has its identity,
content hashes, main metric, dtype and caveats, and the run next to it exists and has not changed. A place that holds a
result of another identity is never overwritten.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree

from unimoe.checks import Check
from unimoe.config import Experiment
from unimoe.core.errors import DataError
from unimoe.core.io import sole_use, write_json
from unimoe.core.trec import ranked, write_qrels, write_run
from unimoe.data.collection import sidecar_path
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.system import BM25, FIRST_STAGE, ZERO_SHOT_ARM, System
from unimoe.results import (
    DrillDown,
    EvalResult,
    FirstStageScores,
    Provenance,
    QueryDetail,
    Task,
    arm_dir,
    by_query_id,
    git_state,
    package_versions,
    qrels_path,
    read_result,
    refuse_other_identity,
    result_files,
    result_path,
    run_beside,
    safe_name,
    write_result,
)

_TASKS: tuple[Task, ...] = ("reranking", "embedding")
_BASELINES = (BM25, FIRST_STAGE, ZERO_SHOT_ARM)


class ResultStore:
    """Reads and writes the results of one output folder; ``given`` are overrides that each result records."""

    def __init__(self, output_dir: Path, given: Sequence[str] = ()) -> None:
        self.output_dir, self._given = output_dir, list(given)

    def path(self, spec: Evaluation) -> Path:
        """Return where the result of a spec lives."""
        return result_path(
            self.output_dir, spec.about.config_name, spec.about.seed, spec.about.task, spec.about.dataset
        )

    def read(self, spec: Evaluation) -> EvalResult:
        """Read the result of a spec, and write the spec's caveats into it: they may change, and scores do not."""
        result = read_result(self.path(spec))
        if result.caveats != (caveats := _caveats(spec, result.checks)):
            result = result.model_copy(update={"caveats": caveats})
            write_json(self.path(spec), result.model_dump())
        return result

    def is_done(self, spec: Evaluation) -> bool:
        """Return whether the result on disk is of this very spec."""
        path = self.path(spec)
        if not spec.reusable or not path.exists():
            return False
        there = read_result(path)
        if there.per_query and not run_beside(path).exists():
            return False
        return (
            (there.dataset, there.identity, there.provenance.hashes, there.provenance.dtype)
            == (spec.about.dataset, spec.about.identity, spec.hashes, spec.dtype)
        ) and spec.main_metric in (None, there.main_metric)

    def refuse_taken(self, spec: Evaluation) -> None:
        """Refuse a spec if its place holds another evaluation; call it before hours of scoring."""
        if self.path(spec).exists():
            refuse_other_identity(self.path(spec), spec.about.identity, spec.about.dataset)

    def evaluated(self, spec: Evaluation, evaluate: Callable[[], Outcome]) -> EvalResult:
        """Return the result of a spec: the one on disk where it is done, else one that is evaluated and written now."""
        self.refuse_taken(spec)
        if not self.is_done(spec):
            with self.alone(spec):
                return self.write(spec, evaluate())
        return self.read(spec)

    def write(self, spec: Evaluation, outcome: Outcome) -> EvalResult:
        """Write a result with its sidecars, TREC run and judgments.

        The result comes last, so that its presence means completeness. Tasks without queries have neither run nor
        judgments.
        """
        detail = None
        if outcome.qrels:
            detail = _drilldown(outcome)
            write_run(run_beside(self.path(spec)), outcome.run, spec.about.config_name)
            # The judgments too, so that any tool can score the run, and from which grade on they were counted.
            judgments = qrels_path(self.output_dir, spec.about.dataset, spec.about.identity.split)
            write_qrels(judgments, outcome.qrels)
            sidecar_path(judgments).unlink(missing_ok=True)
            if outcome.relevance_level != 1:
                write_json(sidecar_path(judgments), {"relevance_level": outcome.relevance_level})
        result = self._result(spec, outcome)
        if outcome.mteb_json:
            write_json(self.path(spec).with_suffix(".mteb.json"), outcome.mteb_json)
        write_result(self.output_dir, result, detail)
        self.clear_unfinished(spec)  # the result holds all of it now
        return result

    def alone(self, spec: Evaluation) -> AbstractContextManager[None]:
        """Return a context in which nobody else evaluates the same; one who does makes it a ``UsageError``.

        A cluster's driver evaluates an arm on several datasets at a time, in threads.
        """
        return sole_use(self.path(spec).parent, self.path(spec).name)

    def unfinished(self, spec: Evaluation) -> Path:
        """Return the folder of what a killed evaluation finds again: shards of a reranking, else vectors."""
        kind = "shards" if spec.about.task == "reranking" else "vectors"
        return arm_dir(self.output_dir, spec.about.config_name, spec.about.seed) / kind / safe_name(spec.about.dataset)

    def clear_unfinished(self, spec: Evaluation) -> None:
        """Remove what a killed evaluation would find again."""
        unfinished = self.unfinished(spec)
        rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):  # other evaluations may have some in the parent folder
            unfinished.parent.rmdir()

    def _result(self, spec: Evaluation, outcome: Outcome) -> EvalResult:
        per_query = dict(outcome.scores.per_query) or {outcome.main_metric: {}}
        commit, dirty = git_state()
        first_stage = None
        if outcome.queries_without_candidates is not None:
            first_stage = FirstStageScores(
                aggregate=outcome.first_stage.aggregate if outcome.first_stage else {},
                delta=outcome.delta,
                queries_without_candidates=outcome.queries_without_candidates,
            )
        return EvalResult(
            **dict(spec.about) | {"caveats": _caveats(spec, outcome.checks)},
            main_metric=outcome.main_metric,
            aggregate=outcome.aggregate,
            per_query=per_query.pop(outcome.main_metric),
            per_query_metrics={name: by_query_id(values) for name, values in per_query.items()},
            unjudged_queries=outcome.scores.unjudged_queries,
            first_stage=first_stage,
            truncated_queries=outcome.truncated_queries,
            relevance_level=outcome.relevance_level,
            vector_index=outcome.vector_index,
            checks=[  # a folder holds several systems
                replace(check, line=f"{spec.about.config_name} on {check.line}")
                if check.name in {"ties", "unjudged"}
                else check
                for check in outcome.checks
            ],
            otherwise=outcome.otherwise,
            provenance=Provenance(
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                git_commit=commit,
                git_dirty=dirty,
                python=platform.python_version(),
                platform=platform.platform(),
                packages=package_versions(),
                device=outcome.device,
                dtype=spec.dtype,
                hashes=dict(spec.hashes),
                token_budget=outcome.token_budget,
                wall_time_s=outcome.seconds,
                items_per_s=outcome.items / outcome.seconds if outcome.items and outcome.seconds > 0 else None,
                given=list(self._given),
                usage=dict(outcome.usage),
            ),
        )


def _caveats(spec: Evaluation, checks: Iterable[Check]) -> list[str]:
    """Return why a result is unfit for decisions: what was known before it was scored, and what scoring found."""
    return list(dict.fromkeys([*spec.about.caveats, *(check.line for check in checks if check.unfit)]))


def _drilldown(outcome: Outcome) -> DrillDown:
    """Return the judged queries with their texts and the ranks of their relevant documents in a run."""
    details = {}
    for query_id, grades in outcome.qrels.items():
        found = ranked(outcome.run.get(query_id, {}))
        places = {document_id: place for place, document_id in enumerate(found, start=1)}
        relevant = {document_id: grade for document_id, grade in grades.items() if grade > 0}
        ranks = {document_id: places.get(document_id) for document_id in relevant}
        details[query_id] = QueryDetail(text=outcome.queries[query_id], relevant=relevant, ranks=ranks)
    grouped = {name: _together({key: details[key] for key in ids}) for name, ids in outcome.groups.items()}
    return DrillDown(queries=grouped or details)


def _together(details: Mapping[str, QueryDetail]) -> QueryDetail:
    """Return several queries as one, in which each document is named with the query that it is relevant to."""
    return QueryDetail(
        text=" | ".join(dict.fromkeys(detail.text for detail in details.values())),
        relevant={f"{query}: {key}": grade for query, one in details.items() for key, grade in one.relevant.items()},
        ranks={f"{query}: {key}": rank for query, one in details.items() for key, rank in one.ranks.items()},
    )


def refuse_other_experiments(retriever: System) -> None:
    """Refuse a folder that holds results which cannot be compared with those of a search."""
    here = {"experiment": retriever.experiment.name, "base_model": retriever.model and retriever.model.identity}
    for path in result_files(retriever.results_dir):
        result = read_result(path)
        if result.beside_arms:
            continue
        searches = (result.task, result.task_type) == ("retrieval", None)
        prompt = {"prompt": retriever.model and retriever.model.prompt} if searches else {}
        for name, value in (here | prompt).items():
            there = getattr(result.identity, name)
            if there not in (None, value):
                raise DataError(
                    f"{path}: {name} {there!r} there, {value!r} here; one folder holds one experiment and one "
                    "base model, choose another --output-dir"
                )


def partial_scores(experiment: Experiment, dataset: str, metric: str) -> Iterator[str]:
    """Yield the lines of a table: each arm's mean over the seeds that are done, by task, with the baselines."""
    width = max(map(len, (*_BASELINES, *experiment.arms)))
    yield f"{metric} on {dataset} so far"
    yield "  ".join([" " * width, *_TASKS])
    for arm in (*_BASELINES, *experiment.arms):
        seeds = list(experiment.seeds) if arm in experiment.arms else [None]
        found: dict[Task, list[float]] = {}
        for task in _TASKS:
            paths = (result_path(Path(experiment.output_dir), arm, seed, task, dataset) for seed in seeds)
            found[task] = [read_result(path).aggregate[metric] for path in paths if path.exists()]
        done = max(map(len, found.values()))
        if done:
            cells = [(f"{statistics.fmean(own):.4f}" if own else "").rjust(len(task)) for task, own in found.items()]
            note = [f"{done} of {len(seeds)} seeds"] if arm in experiment.arms else []
            yield "  ".join([arm.ljust(width), *cells, *note]).rstrip()
