"""Prints the averages over the datasets of a tier and over the tasks of MTEB, as the field reports them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unimoe.core.console import stdout
from unimoe.data.sources.beir_sets import CQADUPSTACK
from unimoe.metrics.scoring import dataset_group, suite_averages
from unimoe.results import EvalResult, Task


def print_averages(results: Sequence[EvalResult]) -> None:
    """Print the averages of each task with more than one dataset; CQADupStack counts once.

    Where some sets have another main metric, as MS MARCO has, nDCG@10 is averaged without them and with them: the field
    reports both.
    """
    for task in sorted({result.task for result in results}):
        of_task = [result for result in results if result.task == task]
        main = {result.dataset: result.main_metric for result in of_task}
        if len(main) < 2:
            continue
        _print_average(task, of_task, main, "")
        others = [dataset for dataset, metric in main.items() if metric != "ndcg@10"]
        if 0 < len(others) < len(main) and all("ndcg@10" in result.aggregate for result in of_task):
            _print_average(task, of_task, dict.fromkeys(main, "ndcg@10"), f", {' and '.join(others)} included")


def _print_average(task: Task, results: Sequence[EvalResult], metrics: Mapping[str, str], what: str) -> None:
    after = suite_averages(metrics, {result.dataset: result.aggregate for result in results})
    before = suite_averages(metrics, {r.dataset: r.first_stage.aggregate for r in results if r.first_stage})
    for metric, value in after.items():
        sets = [dataset_group(dataset) for dataset, own in metrics.items() if own == metric]
        parts = sets.count("cqadupstack")
        some = f" (cqadupstack: {parts} of its {len(CQADUPSTACK)})" if 0 < parts < len(CQADUPSTACK) else ""
        beside = f" (first stage {before[metric]:.4f}, {value - before[metric]:+.4f})" if metric in before else ""
        stdout.print(f"{task} average of {len(set(sets))}{what}: {metric} {value:.4f}{beside}{some}", soft_wrap=True)


def print_mteb_means(results: Sequence[EvalResult]) -> None:
    """Print MTEB's means over tasks: of all main scores, of the types' means, and of each type."""
    for task in sorted({result.task for result in results}):
        by_type: dict[str, list[float]] = {}
        for result in results:
            if result.task == task:
                score = result.aggregate.get("main_score", result.aggregate[result.main_metric])
                by_type.setdefault(str(result.task_type), []).append(score)
        scores = [score for own in by_type.values() for score in own]
        if len(scores) < 2:
            continue
        means = {kind: math.fsum(own) / len(own) for kind, own in sorted(by_type.items())}
        stdout.print(
            f"{task} in MTEB: Mean (Task) {math.fsum(scores) / len(scores):.4f} of {len(scores)} tasks, "
            f"Mean (TaskType) {math.fsum(means.values()) / len(means):.4f}: "
            + ", ".join(f"{kind} {mean:.4f} ({len(by_type[kind])})" for kind, mean in means.items()),
            soft_wrap=True,
        )
