"""What the ways to settle a gate would cost here, from what its arms have taken so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field

from unimoe.analysis.gates.definitions import Gate
from unimoe.core.errors import DataError
from unimoe.core.io import find_files, read_json
from unimoe.results.folder import Results, Seed

Sizes = tuple[int | None, int | None]  # seeds of each arm, and queries of all datasets; None for never


class _Record(BaseModel):
    """What is needed of the job's ``run.json``: seconds by phase, over all seeds (``train joint``)."""

    phases: dict[str, dict[str, float]] = Field(default_factory=dict)


def seconds_of(
    results: Results, gate: Gate, seeds: Sequence[Sequence[Seed]], ways: Mapping[str, Sizes], queries: int
) -> dict[str, float]:
    """Return the seconds that each way to more seeds or queries takes, beyond what there is.

    Empty where the folder has no record of the training of each arm, or a damaged one. A rough number: of a training
    that was killed, the record has only what came after it was resumed.
    """
    try:
        phases = read_json(results.output_dir / "run.json", _Record).phases
    except DataError:
        return {}  # costs are an extra, which must keep no gate from being judged
    kinds = {name: arm.get("task") for r in results.everything for name, arm in r.config.get("arms", {}).items()}
    runs = {file.parts[-5:-3] for file in find_files(results.output_dir, "*/seed_*/results/*/*.json")}
    seconds = {way: 0.0 for way, size in ways.items() if None not in size}
    for arm, of_arm in zip(gate.arms, seeds, strict=True):
        trained = sum(seed is not None for seed in of_arm)  # 0 for an arm that is not trained
        spent = phases.get(f"train {kinds.get(arm)}", {}).get("seconds", 0.0)
        if trained and not spent:
            return {}
        training = spent / max(1, sum(kinds.get(name) == kinds.get(arm) for name, _ in runs))  # of one seed
        times = [r.provenance.wall_time_s for key in gate.keys for r in results.measured(key, arm) if r.seed in of_arm]
        evaluation = sum(times) / max(1, trained)  # of one seed on all datasets
        for way in seconds:
            more_seeds, more_queries = (number or 0 for number in ways[way])
            wanted = max(trained, more_seeds) if trained else 0
            seconds[way] += (wanted - trained) * training
            seconds[way] += (max(1, wanted) * (more_queries / queries) - max(1, trained)) * evaluation
    return seconds
