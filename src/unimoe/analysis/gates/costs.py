"""What further seeds and queries of a gate would cost here, from what its arms have taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from unimoe.core.errors import DataError
from unimoe.core.io import find_files, read_json
from unimoe.results.folder import Results, Seed


class _Record(BaseModel):
    """What is needed of the job's ``run.json``: seconds by phase, over all seeds (``train joint``)."""

    phases: dict[str, dict[str, float]] = Field(default_factory=dict)


@dataclass(frozen=True)
class ArmCost:
    """What one arm of a gate has taken."""

    seeds: int  # trained so far; 0 for an arm that is not trained
    training: float  # mean seconds of training one seed
    evaluation: float  # mean seconds of scoring one seed on all of the gate's datasets


def costs_of(
    results: Results, keys: Sequence[str], arms: Sequence[str], seeds: Sequence[Sequence[Seed]]
) -> tuple[ArmCost, ...]:
    """Return the cost of each arm; nothing where the folder has no record of the training of each, or a damaged one.

    A rough one: of a training that was killed, the record has only what came after it was resumed.
    """
    try:
        phases = read_json(results.output_dir / "run.json", _Record).phases
    except DataError:
        return ()  # costs are an extra, which must keep no gate from being judged
    kinds = {name: arm.get("task") for r in results.everything for name, arm in r.config.get("arms", {}).items()}
    runs = {file.parts[-5:-3] for file in find_files(results.output_dir, "*/seed_*/results/*/*.json")}
    found = []
    for arm, of_arm in zip(arms, seeds, strict=True):
        kind, trained = kinds.get(arm), sum(seed is not None for seed in of_arm)
        spent = phases.get(f"train {kind}", {}).get("seconds", 0.0)
        if trained and not spent:
            return ()
        training = spent / max(1, sum(kinds.get(name) == kind for name, _ in runs))
        times = [r.provenance.wall_time_s for key in keys for r in results.measured(key, arm) if r.seed in of_arm]
        found.append(ArmCost(trained, training, sum(times) / max(1, trained)))
    return tuple(found)


def seconds_of(costs: Sequence[ArmCost], seeds: int, times_queries: float) -> float:
    """Return the seconds to have so many seeds of each arm, all scored on this many times as many queries."""
    whole = 0.0
    for arm in costs:
        wanted = max(arm.seeds, seeds) if arm.seeds else 0
        whole += (wanted - arm.seeds) * arm.training
        whole += (max(1, wanted) * times_queries - max(1, arm.seeds)) * arm.evaluation
    return whole
