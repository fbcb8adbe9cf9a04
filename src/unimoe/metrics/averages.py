"""Averages over a suite of datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping


def dataset_group(dataset: str) -> str:
    """Return what counts once in an average: CQADupStack for its twelve subforums, else the dataset itself."""
    return "cqadupstack" if "cqadupstack" in dataset.lower() else dataset


def suite_averages(main_metrics: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average over a suite of datasets, once for each main metric: MRR@10 is never mixed with nDCG@10.

    Args:
        main_metrics: dataset to its main metric.
        scores: dataset to ``{metric: value}``.

    Returns:
        Metric to the mean over the datasets whose main metric it is, the parts of one set averaged first. Without the
        metrics that a dataset lacks: an average over fewer datasets would pass for one over all.
    """
    averages = {}
    for metric in sorted(set(main_metrics.values())):
        datasets = [dataset for dataset, main in main_metrics.items() if main == metric]
        if all(metric in scores.get(dataset, {}) for dataset in datasets):
            groups: dict[str, list[float]] = {}
            for dataset in datasets:
                groups.setdefault(dataset_group(dataset), []).append(scores[dataset][metric])
            averages[metric] = math.fsum(math.fsum(part) / len(part) for part in groups.values()) / len(groups)
    return averages
