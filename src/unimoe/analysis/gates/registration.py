"""Where gates come from: a file copied into the output folder before there are scores, or the rule where none was."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from unimoe.analysis.gates.definitions import InterferenceGate, Registration, load_gates
from unimoe.analysis.interference import InterferenceMetrics
from unimoe.analysis.loading import Pair
from unimoe.errors import DataError, did_you_mean
from unimoe.io import atomic_path, find_files

REGISTERED = "gates.yaml"
"""The copy in an output folder. Its presence means that it was there before the first result."""


def register(registration: Registration, output_dir: Path) -> bool:
    """Copy a gate file into an output folder that holds no results yet.

    Returns:
        Whether the folder's registered gates are these. False for a folder that has results but no registered gates:
        it is too late to register any.

    Raises:
        DataError: other gates are registered there.
    """
    path = output_dir / REGISTERED
    if path.exists():
        there = load_gates(path).content_hash
        if there != registration.content_hash:
            raise DataError(
                f"{path} registers other gates (hash {there}) than {registration.path} "
                f"(hash {registration.content_hash}); gates are not changed under way: keep them with "
                f"--set gates={path}, or choose another --output-dir"
            )
        return True
    if output_dir.exists() and find_files(output_dir, "*/seed_*/results/*/*.json"):
        return False
    if registration.path is not None:
        with atomic_path(path) as temporary:
            shutil.copyfile(registration.path, temporary)  # to the byte, or the hashes would differ
    return True


def unmet(registration: Registration, arms: Collection[str], seeds: Collection[int]) -> Iterator[str]:
    """What an experiment with these arms and seeds leaves its gates without, so that it is known before hours pass."""
    for name, gate in registration.gates.items():
        for arm in gate.arms:
            if arm not in arms:
                yield f"gate {name!r} names arm {arm!r}, which is none of this experiment's{did_you_mean(arm, arms)}"
        absent = [seed for seed in gate.seeds or () if seed not in seeds]
        if absent:
            yield f"gate {name!r} registers seed {', '.join(map(str, absent))}, which this experiment does not train"


def registered_in(output_dir: Path) -> Registration | None:
    """The gates registered in an output folder; None where none are.

    Raises:
        DataError: its gate file is malformed.
    """
    path = output_dir / REGISTERED
    return load_gates(path) if path.exists() else None


def unregistered(metrics: InterferenceMetrics) -> Registration:
    """The gates that an analysis without a gate file judges by; they were chosen when there were scores."""
    return Registration(None, None, None, dict(default_gates(metrics)))


def default_gates(metrics: InterferenceMetrics) -> dict[str, InterferenceGate]:
    """The rule's gate for each pair of arms, on all datasets with a TIR that share a main metric.

    MRR@10 and nDCG@10 are never averaged; CQADupStack's forums count once.

    Returns:
        By names such as ``reranking.joint_r8``; specialist and metric stand behind where there are several.
    """
    suites: dict[tuple[Pair, str], list[str]] = {}
    for item in metrics.measured:
        suites.setdefault((item.pair, item.metric), []).append(item.dataset)
    gates = {}
    for (pair, metric), datasets in suites.items():
        alike = [(p, m) for p, m in suites if (p.task, p.joint) == (pair.task, pair.joint)]
        name = f"{pair.task}.{pair.joint}"
        name += f"-{pair.specialist}" if len({p for p, _ in alike}) > 1 else ""
        name += f"-{metric}" if len({m for _, m in alike}) > 1 else ""
        gates[name] = InterferenceGate(
            kind="interference",
            task=pair.task,
            datasets=datasets,
            metric=metric,
            specialist=pair.specialist,
            joint=pair.joint,
        )
    return gates
