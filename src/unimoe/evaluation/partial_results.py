"""The scores of an unfinished experiment, while it runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from unimoe.config import Experiment
from unimoe.evaluation.systems.system import BM25, FIRST_STAGE, ZERO_SHOT_ARM
from unimoe.results import EvalResult, Task, read_result, result_path

_TASKS: tuple[Task, ...] = ("reranking", "embedding")
_BASELINES = (BM25, FIRST_STAGE, ZERO_SHOT_ARM)


def partial_scores(experiment: Experiment, dataset: str, metric: str) -> Iterator[str]:
    """Yield the lines of a table: each arm's mean over the seeds that are done, by task, beside the baselines."""
    width = max(map(len, (*_BASELINES, *experiment.arms)))
    yield f"{metric} on {dataset} so far"
    yield "  ".join([" " * width, *_TASKS])
    for arm in (*_BASELINES, *experiment.arms):
        seeds = list(experiment.seeds) if arm in experiment.arms else [None]
        found = {task: list(_results(experiment, arm, seeds, task, dataset)) for task in _TASKS}
        done = max(map(len, found.values()))
        if not done:
            continue
        cells = [_mean(found[task], metric).rjust(len(task)) for task in _TASKS]
        note = [f"{done} of {len(seeds)} seeds"] if arm in experiment.arms else []
        yield "  ".join([arm.ljust(width), *cells, *note]).rstrip()


def _results(
    experiment: Experiment, arm: str, seeds: Sequence[int | None], task: Task, dataset: str
) -> Iterator[EvalResult]:
    for seed in seeds:
        path = result_path(Path(experiment.output_dir), arm, seed, task, dataset)
        if path.exists():
            yield read_result(path)


def _mean(results: Sequence[EvalResult], metric: str) -> str:
    return f"{statistics.fmean(result.aggregate[metric] for result in results):.4f}" if results else ""
