"""The scores a gate judges: both arms on its datasets, the same seeds and queries in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from unimoe.analysis.across import ArmScores
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.loading import Results, Seed
from unimoe.errors import DataError, did_you_mean
from unimoe.metrics import dataset_group


@dataclass(frozen=True)
class GateScores:
    """What a gate judges.

    Attributes:
        seeds: one training seed serves all datasets; ``(None,)`` where neither arm has any.
        by_dataset: both arms, specialist and joint or system and baseline, in the gate's order of datasets.
    """

    seeds: tuple[Seed, ...]
    by_dataset: dict[str, ArmScores]

    @property
    def trained(self) -> bool:
        """Whether some arm has training seeds."""
        return self.seeds != (None,)

    @property
    def queries(self) -> int:
        """Of all datasets together."""
        return sum(first.shape[1] for first, _ in self.by_dataset.values())

    @property
    def groups(self) -> dict[str, dict[str, ArmScores]]:
        """The datasets by what counts once: CQADupStack's forums together, any other dataset alone."""
        groups: dict[str, dict[str, ArmScores]] = {}
        for dataset, pair in self.by_dataset.items():
            groups.setdefault(dataset_group(dataset), {})[dataset] = pair
        return groups

    @property
    def seed_means(self) -> GateScores:
        """Every seed's mean over the queries in place of their scores: all that a value needs, and little to copy."""
        means = {
            d: (a.mean(axis=1, keepdims=True), b.mean(axis=1, keepdims=True)) for d, (a, b) in self.by_dataset.items()
        }
        return replace(self, by_dataset=means)

    def only_seeds(self, kept: Iterable[Seed]) -> GateScores:
        """The same with some of the seeds."""
        rows = [self.seeds.index(seed) for seed in kept]
        cut = {dataset: (a[rows], b[rows]) for dataset, (a, b) in self.by_dataset.items()}
        return GateScores(tuple(self.seeds[row] for row in rows), cut)

    def only_datasets(self, kept: Iterable[str]) -> GateScores:
        """The same with some of the datasets."""
        return replace(self, by_dataset={dataset: self.by_dataset[dataset] for dataset in kept})


def collect(results: Results, gate: Gate) -> GateScores:
    """Find the scores of a gate.

    Raises:
        DataError: an arm, dataset, seed or metric of the gate has no results, or the arms share no seed.
    """
    for arm in gate.arms:
        _refuse_unknown_arm(results, arm)
        for dataset in gate.datasets:
            _refuse_unmeasured(results, gate, arm, dataset)
            _refuse_other_metric(results, gate, arm, f"{gate.task}/{dataset}")
    seeds = _seeds(results, gate)
    return GateScores(
        seeds, {dataset: _pair(results, gate, f"{gate.task}/{dataset}", seeds) for dataset in gate.datasets}
    )


def restricted(results: Results, gate: Gate) -> tuple[Gate, tuple[str, ...]]:
    """The gate with only those of its datasets and seeds that both arms have results of, and what that leaves out.

    Raises:
        DataError: nothing is left to judge.
    """
    for arm in gate.arms:
        _refuse_unknown_arm(results, arm)
    here = [d for d in gate.datasets if all(results.measured(f"{gate.task}/{d}", arm) for arm in gate.arms)]
    if not here:
        _refuse_unmeasured(results, gate, *_first_gap(results, gate))
    cut = gate.model_copy(update={"datasets": here})
    reasons = (
        [f"no result yet on {', '.join(d for d in gate.datasets if d not in here)}"] if here != gate.datasets else []
    )
    if gate.seeds is not None:
        common = _common_seeds(results, cut) or set()
        absent = [seed for seed in gate.seeds if seed not in common]
        cut = cut.model_copy(update={"seeds": [seed for seed in gate.seeds if seed in common] or gate.seeds})
        reasons += [f"no result yet of seed {', '.join(map(str, absent))}"] if absent else []
    return cut, tuple(reasons)


def _first_gap(results: Results, gate: Gate) -> tuple[str, str]:
    return next((a, d) for d in gate.datasets for a in gate.arms if not results.measured(f"{gate.task}/{d}", a))


def _refuse_unknown_arm(results: Results, arm: str) -> None:
    if arm not in results:
        raise DataError(f"no results of arm {arm!r}{did_you_mean(arm, results)}; here: {', '.join(results)}")


def _refuse_unmeasured(results: Results, gate: Gate, arm: str, dataset: str) -> None:
    key = f"{gate.task}/{dataset}"
    if not results.measured(key, arm):
        held = [k for k in results.dataset_keys if results.measured(k, arm)]
        has = ", ".join(held) or "only tasks without queries"
        raise DataError(f"no {key} result of {arm}{did_you_mean(key, held)}; it has {has}")
    if key in results.keys_without_queries:
        raise DataError(
            f"{key} has no queries: nothing is paired there, and no gate can judge it; choose another dataset"
        )


def _common_seeds(results: Results, gate: Gate) -> set[int] | None:
    """The seeds both arms have on every dataset; None where neither arm has seeds."""
    found = [
        set(results.seeds(arm, key))
        for arm in gate.arms
        for key in (f"{gate.task}/{dataset}" for dataset in gate.datasets)
        if results.result(arm, None, key) is None
    ]
    return set.intersection(*found) if found else None


def _seeds(results: Results, gate: Gate) -> tuple[Seed, ...]:
    """As registered, or all that both arms have on every dataset."""
    common = _common_seeds(results, gate)
    if common is None:
        if gate.seeds is not None:
            raise DataError(f"neither {' nor '.join(gate.arms)} has training seeds; remove the key seeds")
        return (None,)
    wanted = common if gate.seeds is None else set(gate.seeds)
    if wanted - common:
        absent = ", ".join(map(str, sorted(wanted - common)))
        raise DataError(f"no results of both arms for seed {absent}; the gate registers its seeds")
    if not wanted:
        raise DataError(f"{' and '.join(gate.arms)} have no seed in common; evaluate the same seeds of both")
    return tuple(sorted(wanted))


def _pair(results: Results, gate: Gate, key: str, seeds: tuple[Seed, ...]) -> ArmScores:
    """An arm without seeds counts the same against every seed of the other."""
    first, second = (results.scores(arm, key, _rows(results, arm, key, seeds), gate.metric) for arm in gate.arms)
    return first, second


def _rows(results: Results, arm: str, key: str, seeds: tuple[Seed, ...]) -> list[Seed]:
    return [None if results.result(arm, None, key) else seed for seed in seeds]


def _refuse_other_metric(results: Results, gate: Gate, arm: str, key: str) -> None:
    for result in results.measured(key, arm):
        held = [result.main_metric, *result.per_query_metrics]
        if gate.metric not in held:
            raise DataError(
                f"no per-query {gate.metric!r} in the {key} result of {arm}{did_you_mean(gate.metric, held)}; "
                f"it holds {', '.join(held)}"
            )
