"""Results as evaluations leave them, made up, and gates to judge them by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from unimoe.analysis.gates.definitions import Gate, Registration, given_gates, load_gates
from unimoe.analysis.gates.judging import Judgment, judge
from unimoe.analysis.gates.scores import Aligned, Runs
from unimoe.core.io import append_jsonl
from unimoe.data.published import BEIR_NAMES
from unimoe.results import EvalResult, Identity, Provenance, Task, TrainingBudget, arm_dir, by_query_id, write_result
from unimoe.results.folder import Results


def query_ids(n: int) -> list[str]:
    return [f"q{i:03d}" for i in range(n)]


def make_result(
    config_name: str,
    seed: int | None,
    scores: Sequence[float] | NDArray[np.float64] | Mapping[str, float],
    *,
    task: Task = "reranking",
    dataset: str = "apidocs",
    identity: Mapping[str, Any] | None = None,
    hashes: Mapping[str, str] | None = None,
    training: TrainingBudget | None = None,
    caveats: Sequence[str] = (),
    metric: str = "ndcg@10",
    task_type: str | None = None,
    main_score: float | None = None,
    paired_seeds: bool | str = False,
) -> EvalResult:
    """``main_score`` is MTEB's own, beside the main metric; ``paired_seeds`` is what the experiment declares."""
    per_query = dict(scores) if isinstance(scores, Mapping) else dict(zip(query_ids(len(scores)), scores, strict=True))
    per_query = {query_id: float(score) for query_id, score in per_query.items()}
    mean = math.fsum(per_query.values()) / len(per_query)
    halves = {query_id: score / 2 for query_id, score in per_query.items()}
    facts: dict[str, Any] = {
        "experiment": "bundled",
        "base_model": None if config_name == "bm25" else "smollm2@0123456789abcdef",
        "checkpoint": "none" if config_name in ("bm25", "zero_shot") else "last",
        "split": "test",
        "first_stage": "bm25s(k1=0.9,b=0.4)",
        "depth": 10,
        "prompt": None if config_name == "bm25" else "chat@fedcba9876543210",
    }
    return EvalResult(
        config_name=config_name,
        seed=seed,
        task=task,
        dataset=dataset,
        task_type=task_type,
        main_metric=metric,
        aggregate={metric: mean, "mrr@10": mean / 2} | ({} if main_score is None else {"main_score": main_score}),
        per_query=per_query,
        per_query_metrics={"mrr@10": by_query_id(halves)},
        unjudged_queries=[],
        first_stage=None,
        caveats=list(caveats),
        identity=Identity(**(facts | dict(identity or {}))),
        training=training,
        config={"name": "bundled"} | ({"paired_seeds": paired_seeds} if paired_seeds else {}),
        provenance=Provenance(
            created="2026-02-07T12:00:00+00:00",
            git_commit="0" * 40,
            git_dirty=False,
            python="3.11.7",
            platform="Linux-x86_64",
            packages={"numpy": "2.4.6", "torch": "2.6.0"},
            device="cpu",
            dtype="bfloat16",
            hashes=dict({"collection": "c0ffee", "candidates": "decade"} if hashes is None else hashes),
            token_budget=2048,
            wall_time_s=1.5,
            items_per_s=40.0,
            given=[],
        ),
    )


def without_queries(
    config_name: str,
    seed: int | None,
    score: float,
    *,
    dataset: str = "STSBenchmark",
    task_type: str = "STS",
    metric: str = "cosine_spearman",
    **given: Any,
) -> EvalResult:
    """One of MTEB's tasks without queries: its main score alone."""
    result = make_result(config_name, seed, [0.0], task="embedding", dataset=dataset, task_type=task_type, **given)
    changed = {"main_metric": metric, "aggregate": {metric: score}, "per_query": {}, "per_query_metrics": {}}
    return EvalResult.model_validate(result.model_dump() | changed)


def results_of(*items: EvalResult) -> Results:
    """Results that no folder holds."""
    return Results(Path("out"), items)


def simulate(
    seeds: int, queries: int, tir: float, *, rng: np.random.Generator, seed_sd: float = 0.01, query_sd: float = 0.1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Specialist and joint scores, ``(seeds, queries)``, of mean .5 and a true TIR."""
    difficulty = rng.normal(0.0, 0.2, queries)

    def arm(mean: float) -> NDArray[np.float64]:
        own = rng.normal(0.0, query_sd, queries)
        noise = rng.normal(0.0, 0.05, (seeds, queries))
        return np.asarray(mean + difficulty + own + rng.normal(0.0, seed_sd, (seeds, 1)) + noise)

    return arm(0.5), arm(0.5 * (1.0 - tir))


def write_experiment(
    output_dir: Path,
    *,
    arms: Sequence[str] = ("rank_only_r8", "emb_only_r8", "joint_r8"),
    seeds: Sequence[int] = (0, 1, 2),
    queries: int = 40,
    tir: float = 0.05,
    caveats: Sequence[str] = (),
    logs: bool = True,
) -> None:
    """A small experiment on disk: baselines, arms by seed, both tasks, training logs."""
    rng = np.random.default_rng(7)
    specialist, joint = (np.clip(scores, 0.0, 1.0) for scores in simulate(len(seeds), queries, tir, rng=rng))
    for task in ("reranking", "embedding"):
        for baseline, factor in (("bm25", 0.9), ("zero_shot", 0.6)):
            if (task, baseline) != ("embedding", "bm25"):
                untrained = make_result(baseline, None, specialist[0] * factor, task=task, caveats=caveats)
                write_result(output_dir, untrained)
        for arm in arms:
            if arm.startswith("joint") or arm.startswith("rank") == (task == "reranking"):
                matrix = joint if arm.startswith("joint") else specialist
                for seed, row in zip(seeds, matrix, strict=True):
                    budget = TrainingBudget(steps=60, ranking_examples=480, embedding_examples=1920, tokens=100_000)
                    write_result(output_dir, make_result(arm, seed, row, task=task, caveats=caveats, training=budget))
    for arm in arms if logs else ():
        for seed in seeds:
            write_log(output_dir, arm, seed, rng)


def write_log(output_dir: Path, arm: str, seed: int, rng: np.random.Generator, steps: int = 60) -> None:
    path = arm_dir(output_dir, arm, seed) / "logs" / "train.jsonl"
    for step in range(1, steps + 1):
        loss = float(0.2 + np.exp(-step / 15) + rng.normal(0.0, 0.05))
        record: dict[str, Any] = {"step": step, "task": arm.rpartition("_")[0], "loss": loss, "lr": 1e-3}
        if arm.startswith("joint"):
            record |= {"ranking_loss": loss, "embedding_loss": 2 * loss}
        append_jsonl(path, record)


QUERIES = dict.fromkeys([*BEIR_NAMES, "cqadupstack"], 3500)
"""Queries of each dataset of the full tier: together as many as the real ones have."""


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


Matrix = Sequence[Sequence[float]] | NDArray[np.float64]

BASE = {"task": "reranking", "datasets": ["apidocs"], "metric": "ndcg@10"}
INTERFERENCE = BASE | {"kind": "interference", "specialist": "rank_only_r8", "joint": "joint_r8"}
DIFFERENCE = BASE | {"system": "joint_r8", "baseline": "rank_only_r8", "margin": 0.01}


def gate_file(folder: Path, *, registered: str = "2026-01-01", **gates: dict[str, Any]) -> Path:
    path = folder / "gates.yaml"
    path.write_text(yaml.safe_dump({"registered": registered, "gates": gates}), encoding="utf-8")
    return path


def register(folder: Path, **gate: Any) -> Registration:
    return load_gates(gate_file(folder, it=gate))


def judged(found: Results, **gate: Any) -> Judgment:
    """The judgment of a gate that no file registers."""
    return judge(found, given_gates({"it": gate}), "it")


def measured(arm: str, scores: Matrix, dataset: str = "apidocs", **given: Any) -> list[EvalResult]:
    rows = [[float(score) for score in row] for row in scores]
    return [make_result(arm, seed, row, dataset=dataset, **given) for seed, row in enumerate(rows)]


def both(specialist: Matrix, joint: Matrix, **given: Any) -> Results:
    return results_of(*measured("rank_only_r8", specialist, **given), *measured("joint_r8", joint, **given))


def clear_gap(gap: float, seeds: int = 3, **given: Any) -> Results:
    """Joint minus rank_only is within a tenth of a point of ``gap``, so that labels hold with confidence."""
    rng = np.random.default_rng(0)
    base = np.tile(np.linspace(0.3, 0.7, 20), (seeds, 1))
    noise = rng.normal(0.0, 0.0005, (2, seeds, 20))
    noise -= noise.mean(axis=(1, 2), keepdims=True)
    return both(base + noise[0], base + gap + noise[1], **given)


def scores_of(gate: Gate, datasets: Mapping[str, tuple[Matrix, Matrix]], *, paired: bool = False) -> Aligned:
    """What a gate judges, of the specialist's and the joint arm's scores, ``(seeds, queries)``, by dataset."""
    by_dataset = {}
    for dataset, arms in datasets.items():
        first, second = (Runs(tuple(range(len(rows))), np.asarray(rows)) for rows in arms)
        by_dataset[dataset] = (first, second)
    return Aligned(gate.arms, paired, by_dataset)
