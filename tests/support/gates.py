"""Gate files and results to judge by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from support.results import make_result, results_of

from unimoe.analysis.gates.definitions import Gate, Registration, given_gates, load_gates
from unimoe.analysis.gates.judging import Judgment, judge
from unimoe.analysis.gates.scores import Aligned, Runs
from unimoe.results import EvalResult
from unimoe.results.folder import Results

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
