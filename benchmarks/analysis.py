"""Seconds of the analysis at BEIR's size: everything, report and figures included, and the verdicts alone; all pairs.

    uv run benchmarks/analysis.py [--rounds N]

A folder of results is generated: BEIR's 15 sets with their numbers of test queries, five trained arms with five seeds
each beside BM25 and zero-shot, all default metrics by query, the sidecars with query texts and ranks, training logs and
logs of gradient conflicts. Then the commands run on it in turn, each in a fresh process with its imports. One run of
each beforehand fills the caches of byte code and files, as on a machine in use. Last, all pairs of 100 systems with as
many queries as MS MARCO's dev set are compared, in processor seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.results import QUERIES, make_result

from unimoe.analysis.analysis import SystemComparison
from unimoe.core.io import ensure_dir, write_text
from unimoe.metrics import DEFAULT_METRICS
from unimoe.results import DrillDown, EvalResult, QueryDetail, TrainingBudget, arm_dir, by_query_id, write_result
from unimoe.results.folder import Results
from unimoe.results.logs import Conflict

BASELINES = ("bm25", "zero_shot")
TRAINED = ("rank_only_r8", "rank_only_r32", "emb_only_r8", "joint_r8", "joint_r32")
SEEDS, STEPS, LAYERS, MEASURED_STEPS = 5, 1_000, 28, 50
CONFLICT_KEYS = [key for key in Conflict.model_fields if key not in ("step", "layer")]
BUDGET = TrainingBudget(steps=STEPS, ranking_examples=8, embedding_examples=8, tokens=8)
SCRIPT = Path(__file__).parents[1] / "scripts" / "analyze_results.py"


def generate(folder: Path) -> None:
    """Write the whole experiment, and its gates."""
    rng = np.random.default_rng(0)
    runs: list[tuple[str, int | None]] = [(arm, None) for arm in BASELINES]
    runs += [(arm, seed) for arm in TRAINED for seed in range(SEEDS)]
    shifts = {run: rng.normal(0.06 if run[1] is not None else 0.0, 0.004) for run in runs}
    for dataset, queries in QUERIES.items():
        ids = [f"PLAIN-{i * 137}" for i in range(queries)]
        difficulty = rng.normal(0.5, 0.3, queries)
        for arm, seed in runs:
            scores = np.clip(difficulty + rng.normal(shifts[arm, seed], 0.15, queries), 0.0, 1.0)
            write_result(folder, result(arm, seed, dataset, ids, scores), sidecar(dataset, ids, scores))
    for arm, seed in runs:
        if seed is not None:
            write_logs(arm_dir(folder, arm, seed) / "logs", rng, conflicts=arm.startswith("joint"))
    write_text(folder / "gates.yaml", "\n".join(gates()) + "\n")


def result(arm: str, seed: int | None, dataset: str, ids: list[str], scores: NDArray[np.float64]) -> EvalResult:
    """One result file, with values of every default metric."""
    main, *others = DEFAULT_METRICS
    rest = {
        name: by_query_id(dict(zip(ids, (scores ** (i + 2)).tolist(), strict=True))) for i, name in enumerate(others)
    }
    made = make_result(
        arm,
        seed,
        dict(zip(ids, scores.tolist(), strict=True)),
        dataset=dataset,
        metric=main,
        identity={"experiment": "beir", "depth": 100, "checkpoint": "none" if seed is None else "last"},
        hashes={"collection": dataset, "candidates": dataset},
        training=None if seed is None else BUDGET,
    )
    means = {name: math.fsum(values) / len(values) for name, values in rest.items()}
    changed = {"per_query_metrics": rest, "aggregate": {main: made.aggregate[main]} | means}
    return EvalResult.model_validate(made.model_dump() | changed)


def sidecar(dataset: str, ids: list[str], scores: NDArray[np.float64]) -> DrillDown:
    """Texts, and ranks that go with the scores."""
    ranks = (1 + 99 * (1.0 - scores)).astype(int).tolist()
    return DrillDown(
        queries={
            query_id: QueryDetail(
                text=f"what is known in {dataset} about the subject of question {query_id} and its causes",
                relevant={f"{dataset}-{query_id}": 1},
                ranks={f"{dataset}-{query_id}": rank},
            )
            for query_id, rank in zip(ids, ranks, strict=True)
        }
    )


def write_logs(folder: Path, rng: np.random.Generator, *, conflicts: bool) -> None:
    """A log of the losses, and for joint arms one of the gradients."""
    ensure_dir(folder)
    losses = 0.2 + np.exp(-np.arange(STEPS) / 200) + rng.normal(0.0, 0.05, STEPS)
    steps = [{"step": i + 1, "task": "ranking", "loss": loss, "lr": 1e-3} for i, loss in enumerate(losses.tolist())]
    write_text(folder / "train.jsonl", "".join(f"{json.dumps(record)}\n" for record in steps))
    if conflicts:
        values = rng.uniform(0.1, 0.9, (MEASURED_STEPS, LAYERS, len(CONFLICT_KEYS))).tolist()
        records = [
            {"step": 20 * (i + 1), "layer": layer} | dict(zip(CONFLICT_KEYS, row, strict=True))
            for i, layers in enumerate(values)
            for layer, row in enumerate(layers)
        ]
        write_text(folder / "gradient_conflicts.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))


def gates() -> Iterator[str]:
    """Two gates over all datasets: ten arms and seeds of each are read, as a real project's gates would."""
    yield "registered: 2026-01-01T00:00:00Z"
    yield "gates:"
    for rank in ("r8", "r32"):
        yield f"  {rank}: {{kind: interference, task: reranking, metric: ndcg@10, specialist: rank_only_{rank},"
        yield f"    joint: joint_{rank}, datasets: [{', '.join(QUERIES)}]}}"


def measure(folder: Path, *arguments: str | Path) -> tuple[float, float]:
    """Seconds and peak memory (MiB) of a command in a process of its own; any verdict will do."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "byte-code")
    command = [sys.executable, SCRIPT, *arguments, "--output-dir", folder]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        elapsed, child.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 10, 11, 12):
            output.seek(0)
            sys.exit(f"{SCRIPT.name} ended with {child.returncode}: {output.read().decode()}")
    return elapsed, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def all_pairs(systems: int = 100, queries: int = 6_980) -> float:
    """Processor seconds to compare every two of many systems, from their scores."""
    rng, names = np.random.default_rng(0), [f"system{i}" for i in range(systems)]
    difficulty = rng.normal(0.5, 0.3, queries)
    scores = np.clip(difficulty + rng.normal(0.0, 0.15, (systems, queries)), 0.0, 1.0)
    made = [
        make_result(name, None, row).model_copy(update={"per_query_metrics": {}})
        for name, row in zip(names, scores, strict=True)
    ]
    results, start = Results(Path("(no folder)"), made), time.process_time()
    found = SystemComparison(results, names, None, "all").test_rows
    print(f"all {len(found):,} pairs of {systems} systems, {queries:,} queries: {time.process_time() - start:.1f} s")
    return round(time.process_time() - start, 2)


def describe(folder: Path) -> str:
    """What was generated."""
    files = list(folder.glob("*/seed_*/results/*/*.json"))
    size = sum(file.stat().st_size for file in files) / 2**20
    return (
        f"{len(QUERIES)} collections, {sum(QUERIES.values()):,} queries, {len(TRAINED)} trained arms x {SEEDS} seeds "
        f"and {len(BASELINES)} baselines: {size:,.0f} MiB in {len(files):,} files"
    )


def main() -> None:
    """Generate, measure in turn, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder)
        print(describe(folder))
        commands: dict[str, tuple[str | Path, ...]] = {
            "full": (),
            "verdicts": ("verdicts", "--gates", folder / "gates.yaml"),
        }
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for round_ in range(rounds + 1):
            for name, arguments in commands.items():
                found = measure(folder, *arguments)
                runs[name] += [found] if round_ else []
        size = (folder / "analysis" / "report.html").stat().st_size / 2**20
    medians = {"all_pairs_s": all_pairs()}
    for name, measured in runs.items():
        times, peaks = zip(*measured, strict=True)
        medians[f"{name}_s"] = round(statistics.median(times), 2)
        spread = f"{min(times):.2f} to {max(times):.2f} s in {rounds} runs"
        print(f"{name}: {medians[f'{name}_s']:.2f} s ({spread}), peak memory {max(peaks):,.0f} MiB")
    print(f"report.html: {size:.1f} MiB")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
