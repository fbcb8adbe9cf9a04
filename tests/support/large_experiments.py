"""A made-up experiment of a paper's size: 15 datasets, both tasks, at BEIR's numbers of queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from support.results import make_result, simulate

from unimoe.results import EvalResult, Task
from unimoe.results.folder import Results

QUERIES = {
    "arguana": 1406,
    "climate-fever": 1535,
    "cqadupstack": 13145,
    "dbpedia-entity": 400,
    "fever": 6666,
    "fiqa": 648,
    "hotpotqa": 7405,
    "msmarco": 6980,
    "nfcorpus": 323,
    "nq": 3452,
    "quora": 10000,
    "scidocs": 1000,
    "scifact": 300,
    "trec-covid": 50,
    "webis-touche2020": 49,
}


def large_results(output_dir: Path, queries: Mapping[str, int] = QUERIES, seeds: int = 5) -> Results:
    """Two baselines, two specialists and a joint arm on every dataset, in memory; TIR runs from -3 to 8 %."""
    rng = np.random.default_rng(11)
    found: list[EvalResult] = []
    specialists: dict[Task, str] = {"reranking": "rank_only_r8", "embedding": "emb_only_r8"}
    for task, specialist in specialists.items():
        for (dataset, n), tir in zip(queries.items(), np.linspace(-0.03, 0.08, len(queries)), strict=True):
            own, joint = (np.clip(s, 0.0, 1.0) for s in simulate(seeds, n, float(tir), rng=rng, seed_sd=0.004))
            for arm, matrix in ((specialist, own), ("joint_r8", joint)):
                for seed, row in enumerate(matrix):
                    found.append(make_result(arm, seed, row, task=task, dataset=dataset))
            for arm, factor in (("bm25", 0.9), ("zero_shot", 0.6)):
                found.append(make_result(arm, None, own[0] * factor, task=task, dataset=dataset))
    return Results(output_dir, found)
