"""The main job in a fresh folder: its time, work and memory, how good its estimate was, and what its arms gain.

    uv run benchmarks/main_job.py [--smoke] [--output-dir FOLDER]

It runs ``scripts/run_experiment.py`` as a user does, and reads ``run.json`` and the results. Points are nDCG@10 x 100,
the mean over seeds of a specialist's score less BM25's: of BM25's own order of the candidates for ranking, of BM25 over
the pool of documents for embedding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from unimoe.config import Experiment
from unimoe.config.files import load_experiment
from unimoe.core.io import read_json
from unimoe.evaluation.datasets import LoadedDataset, tier_datasets
from unimoe.experiment.job import RECORD, smoke_version
from unimoe.metrics import score_run
from unimoe.results import Task, read_result, result_path
from unimoe.retrieval.bm25 import bm25_run

CONFIG, METRIC = Path("experiments/bundled"), "ndcg@10"
SCRIPT = Path(__file__).parents[1] / "scripts" / "run_experiment.py"


def of_bm25(data: LoadedDataset) -> dict[Task, float]:
    """Return BM25's score: of its candidates, and of its search of the pool."""
    collection, pooled = data.collection, data.pooled
    runs = {"reranking": data.candidates, "embedding": bm25_run(pooled, 100, data.dataset.settings.bm25, cached=True)}
    level = collection.relevance_level
    found = {task: score_run(collection.qrels, run, relevance_level=level) for task, run in runs.items()}
    return {"reranking": found["reranking"].aggregate[METRIC], "embedding": found["embedding"].aggregate[METRIC]}


def points(experiment: Experiment, folder: Path, kind: str, task: Task, data: LoadedDataset) -> float:
    """Return by how many points the specialists of a kind beat BM25 on its task, mean over arms and seeds."""
    arms = [name for name, arm in experiment.arms.items() if arm.task == kind]
    places = [result_path(folder, arm, seed, task, data.dataset.name) for arm in arms for seed in experiment.seeds]
    scores = [read_result(place).aggregate[METRIC] for place in places]
    return 100 * (statistics.fmean(scores) - of_bm25(data)[task])


def summary(record: dict[str, Any]) -> dict[str, float]:
    """Return what the job cost, and its seconds over the middle of the estimate."""
    estimated = statistics.fmean(record["estimate_seconds"].values())
    return {
        "seconds": round(record["seconds"], 1),
        "matmul_tflop": round(record["matmul_tflop"], 2),
        "peak_mib": round(record["peak_mib"]),
        "estimate_ratio": round(record["seconds"] / estimated, 3),
    }


def main() -> None:
    """Run the job and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="few steps, one seed")
    parser.add_argument("--output-dir", type=Path, help="keep the job's results in this new folder")
    given = parser.parse_args()
    smoke: bool = given.smoke
    experiment = load_experiment(CONFIG)
    experiment = smoke_version(experiment) if smoke else experiment
    with tempfile.TemporaryDirectory() as name:
        folder = given.output_dir or Path(name) / "outputs"
        command = [sys.executable, str(SCRIPT), "--output-dir", str(folder), *(["--smoke"] if smoke else [])]
        subprocess.run(command, check=True)
        record = read_json(folder / RECORD, dict[str, Any])
        (dataset,) = tier_datasets(experiment, "bundled")
        data = LoadedDataset(dataset)
        found = summary(record) | {
            "rank_vs_bm25_points": round(points(experiment, folder, "rank_only", "reranking", data), 2),
            "emb_vs_bm25_points": round(points(experiment, folder, "emb_only", "embedding", data), 2),
        }
    print(f"{record['device']}, {record['dtype']}, {len(experiment.seeds)} seeds")
    for phase, cost in record["phases"].items():
        print(f"{phase:<22}{cost['seconds']:>9.1f} s{cost['matmul_tflop']:>10.2f} TFLOP")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
