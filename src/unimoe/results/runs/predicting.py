"""Scores of runs by a model's judgments, added to those by human ones: for a comparison, and for a folder's runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from unimoe.checks import Check
from unimoe.core.errors import DataError, some_ids
from unimoe.core.grouping import gathered
from unimoe.core.trec import Grades
from unimoe.formats.qrels import load_qrels
from unimoe.results import EvalResult, by_query_id, qrels_path, run_path
from unimoe.results.comparability import name_of
from unimoe.results.folder import Results
from unimoe.results.predicted import Labels, Matrix, PredictedScores, agreement_of
from unimoe.results.runs.scoring import ScoredRun, score_source
from unimoe.results.runs.sources import JudgedDataset, RunSource, Scoring

ByMetric = Mapping[str, Mapping[str, float]]  # scores by metric and query id


def refuse_unranked(by_model: Sequence[ScoredRun], allow: Sequence[str]) -> None:
    """Refuse runs that lack queries which a model judges, unless these count 0."""
    lacking = next((run for run in by_model if run.missing), None)
    if lacking and "zeros" not in allow:
        raise DataError(
            f"{lacking.name} lacks {some_ids(lacking.missing)}, which {lacking.source.judged.name} judges; give runs "
            "of all queries, or --allow zeros to count them 0"
        )


def predicted_scores(
    systems: Sequence[str], human: Sequence[ByMetric], model: Sequence[ByMetric], judged: JudgedDataset, agreement: str
) -> tuple[list[PredictedScores], list[Check]]:
    """Return each run's scores by a model's judgments, a weight of each metric for all, and what the labels brought.

    Scores are by run, those of people on the labelled queries alone; the first metric is the one that checks are about.
    """
    queries, places = sorted(judged.qrels), gathered((system, place) for place, system in enumerate(systems)).values()
    weights, found = dict[str, float](), list[Check]()

    def means(scores: Sequence[ByMetric], metric: str) -> Matrix:
        rows = np.array([by_query_id(of[metric]) for of in scores])
        return np.array([rows[of_system].mean(axis=0) for of_system in places])

    for metric, of_first in human[0].items():
        labelled = np.array([query in of_first for query in queries])
        labels = Labels(means(human, metric), means(model, metric), labelled)
        weights[metric] = labels.weight
        if not found:
            found += labels.checks(judged.dataset, metric, Path(judged.name).name, agreement)
    facts = {"judgments": Path(judged.name).name, "hash": judged.content_hash, "queries": queries, "weights": weights}
    scores = ({metric: by_query_id(of[metric]) for metric in weights} for of in model)
    return [PredictedScores.model_validate(facts | {"scores": of}) for of in scores], found


def with_predicted(results: Results, given: Mapping[str, Path], metric: str) -> Results:
    """Return results with a model's judgments of the runs added, by ``task/dataset``, for one metric.

    Results that a comparison has scored with judgments of that name stay as they are.

    Raises:
        DataError: there are no runs, or results with other judgments; or the file does not fit the labelled queries.
    """
    replaced: dict[tuple[object, ...], EvalResult] = {}
    for key, path in given.items():
        measured = results.measured(key)
        if all(r.predicted and r.predicted.judgments == path.name for r in measured):
            continue
        if any(r.predicted for r in measured):
            raise DataError(f"{key}: scored with other predicted judgments than {path.name}; compare again with these")
        for result in _scored_again(results, measured, path, metric):
            replaced[result.config_name, result.seed, result.key] = result
    if not replaced:
        return results
    every = [replaced.get((r.config_name, r.seed, r.key), r) for r in results.everything]
    held, details = (results.clusters, results.groups), results.details or None
    return Results(results.output_dir, every, results.logs, results.allow, details, None, *held)


def _scored_again(results: Results, measured: Sequence[EvalResult], path: Path, metric: str) -> list[EvalResult]:
    """Return the results on one dataset with the scores of their runs by a model's judgments."""
    first = measured[0]
    of_people: Grades = {query: {} for query in first.per_query}
    human = JudgedDataset(first.dataset, "the results", of_people, "", first.relevance_level, None)
    judged = human.predicted_by(_found(path, results.output_dir), (metric,))
    by_model = []
    for r in measured:
        run = run_path(results.output_dir, r.config_name, r.seed, r.task, r.dataset)
        if not run.exists():
            raise DataError(f"{run}: no run of {name_of(r)} to score by {path.name}; evaluate it again")
        by_model.append(score_source(RunSource(r.config_name, judged, r.seed, str(run), run), Scoring((metric,))))
    refuse_unranked(by_model, ())
    file = qrels_path(results.output_dir, first.dataset, first.identity.split)
    agreement = agreement_of(load_qrels(file), judged.qrels) if file.exists() else ""
    scores = [{metric: r.metric(metric)} for r in measured]
    of_model = [{metric: run.scores.per_query[metric]} for run in by_model]
    predicted, brought = predicted_scores([r.config_name for r in measured], scores, of_model, judged, agreement)
    return [
        r.model_copy(
            update={
                "predicted": one,
                "caveats": [*r.caveats, *(check.line for check in judged.checks)],
                "aggregate": r.aggregate | {metric: one.mean(metric, r.metric(metric))},
                "checks": [*r.checks, *brought],
            }
        )
        for r, one in zip(measured, predicted, strict=True)
    ]


def _found(path: Path, folder: Path) -> Path:
    """Return a path as given or, where there is nothing, below the results' folder."""
    return path if path.exists() or not (folder / path).exists() else folder / path
