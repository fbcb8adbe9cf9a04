"""The scores of an unfinished experiment, while it runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from unimoe.config import Experiment
from unimoe.evaluation.systems.system import BM25, FIRST_STAGE, ZERO_SHOT_ARM
from unimoe.results import Task, read_result, result_path

_TASKS: tuple[Task, ...] = ("reranking", "embedding")
_BASELINES = (BM25, FIRST_STAGE, ZERO_SHOT_ARM)


def partial_scores(experiment: Experiment, dataset: str, metric: str) -> Iterator[str]:
    """Yield the lines of a table: each arm's mean over the seeds that are done, by task, beside the baselines."""
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
