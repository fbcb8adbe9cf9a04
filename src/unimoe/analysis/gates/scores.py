"""The scores a gate judges: both arms on its datasets, queries in one order, each arm with its own training runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.statistics.variance import Array, Moments, groups_of, moments
from unimoe.errors import DataError, did_you_mean
from unimoe.grouping import gathered
from unimoe.metrics import dataset_group, is_binary
from unimoe.results.folder import Results, Seed


@dataclass(frozen=True)
class GateScores:
    """What a gate judges."""

    arms: tuple[str, str]  # specialist and joint, or system and baseline
    seeds: tuple[tuple[Seed, ...], tuple[Seed, ...]]  # of each arm, the same on all datasets; ``(None,)`` without any
    paired: bool  # whether equal seeds make a pair, which the experiment declares
    by_dataset: dict[str, tuple[Array, Array]]  # scores of both arms, ``(seeds, queries)``, in the gate's order
    levels: tuple[int, ...] = ()  # lowest relevant grades, where the metric depends on them
    numbered: bool = True  # whether seeds are those of trainings; those of run files are only their places in a list

    @property
    def queries(self) -> int:
        """Number of queries of all datasets together."""
        return sum(first.shape[1] for first, _ in self.by_dataset.values())

    @property
    def differing(self) -> int:
        """Number of queries on which the arms' scores, averaged over seeds, differ."""
        differences = (first.mean(axis=0) - second.mean(axis=0) for first, second in self.by_dataset.values())
        return sum(int((abs(of_dataset) > 1e-12).sum()) for of_dataset in differences)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The datasets by what counts once: CQADupStack's forums together, any other dataset alone."""
        return gathered((dataset_group(dataset), dataset) for dataset in self.by_dataset)

    @property
    def single(self) -> tuple[str, ...]:
        """The arms with one training seed, for which other seeds cannot be judged."""
        return tuple(
            arm for arm, seeds in zip(self.arms, self.seeds, strict=True) if len(seeds) == 1 and seeds[0] is not None
        )

    @cached_property
    def moments(self) -> Moments:
        """Means and variances of both arms on every dataset."""
        runs = tuple(len(seeds) for seeds in self.seeds)
        return moments(list(self.by_dataset.values()), groups_of(runs, paired=self.paired))

    @cached_property
    def run_means(self) -> tuple[Array, Array]:
        """Mean score of every run on every dataset, ``(seeds, datasets)`` for each arm."""
        of_datasets = [[block.mean(axis=1) for block in arms] for arms in self.by_dataset.values()]
        first, second = (np.stack(columns, axis=1) for columns in zip(*of_datasets, strict=True))
        return first, second

    @property
    def means(self) -> Array:
        """Mean score of each arm on every dataset, ``(datasets, arms)``."""
        return np.stack([runs.mean(axis=0) for runs in self.run_means], axis=1)

    def without(self, seed: Seed, arm: int | None = None) -> GateScores:
        """Return the same without one seed, of one arm or of both."""
        kept = [
            [row for row, other in enumerate(seeds) if other != seed or arm not in (None, place)]
            for place, seeds in enumerate(self.seeds)
        ]
        first, second = ([seeds[row] for row in rows] for seeds, rows in zip(self.seeds, kept, strict=True))
        cut = {dataset: (a[kept[0]], b[kept[1]]) for dataset, (a, b) in self.by_dataset.items()}
        return replace(self, seeds=(tuple(first), tuple(second)), by_dataset=cut)


def collect(results: Results, gate: Gate) -> GateScores:
    """Find the scores of a gate; a DataError where an arm, dataset, seed or metric of it has no results.

    Where the experiment declares that seeds pair, both arms are cut to the seeds they share, if these are two or more.
    Otherwise each arm has all the seeds that it has on every dataset. Seeds with the same scores are one run.
    """
    _refuse_missing(results, gate)
    (arm, other), keys, metric = gate.arms, gate.keys, gate.metric
    first, second = _seeds(results, gate, arm), _seeds(results, gate, other)
    if common := results.paired_seeds(gate.arms, keys, first, second):
        first = second = common
    blocks = [(results.scores(arm, key, first, metric), results.scores(other, key, second, metric)) for key in keys]
    return GateScores(
        arms=gate.arms,
        seeds=(first, second),
        paired=bool(common),
        by_dataset=dict(zip(gate.datasets, blocks, strict=True)),
        levels=tuple(sorted({results.measured(k, arm)[0].relevance_level for k in keys if is_binary(metric)})),
        numbered=all(r.identity.checkpoint != "none" for k in keys for a in gate.arms for r in results.measured(k, a)),
    )


def restricted(results: Results, gate: Gate) -> tuple[Gate, tuple[str, ...]]:
    """Return the gate with only those of its datasets and seeds that have results, and what that leaves out.

    A gate without any is a DataError, as in ``collect``.
    """
    there = zip(gate.datasets, gate.keys, strict=True)
    here = [dataset for dataset, key in there if all(results.measured(key, arm) for arm in gate.arms)]
    if not here:
        _refuse_missing(results, gate)
    reasons, cut = [], gate.model_copy(update={"datasets": here})
    if here != gate.datasets:
        reasons.append(f"no result yet on {', '.join(d for d in gate.datasets if d not in here)}")
    if gate.seeds is not None:
        held = [results.seeds_of_all(arm, cut.keys) for arm in gate.arms if not _is_untrained(results, arm, cut.keys)]
        kept = [seed for seed in gate.seeds if all(seed in of_arm for of_arm in held)]
        if kept != gate.seeds:
            reasons.append(f"no result yet of seed {', '.join(str(seed) for seed in gate.seeds if seed not in kept)}")
        cut = cut.model_copy(update={"seeds": kept or gate.seeds})
    return cut, tuple(reasons)


def refuse_unknown_arm(results: Results, arm: str) -> None:
    """Refuse an arm without results by a DataError that names the closest."""
    if arm not in results:
        raise DataError(f"no results of arm {arm!r}{did_you_mean(arm, results)}; here: {', '.join(results)}")


def _is_untrained(results: Results, arm: str, keys: list[str]) -> bool:
    return all(results.result(arm, None, key) is not None for key in keys)


def _seeds(results: Results, gate: Gate, arm: str) -> tuple[Seed, ...]:
    """Return the seeds of an arm's runs; ``(None,)`` where it has none at all."""
    if _is_untrained(results, arm, gate.keys):
        return (None,)
    held = results.seeds_of_all(arm, gate.keys)
    if gate.seeds is not None:
        absent = [str(seed) for seed in gate.seeds if seed not in held]
        if absent:
            raise DataError(f"no result of {arm} for seed {', '.join(absent)}; the gate registers its seeds")
        held = tuple(gate.seeds)
    if not held:
        raise DataError(f"{arm} has no seed with a result on each of {', '.join(gate.keys)}; evaluate one seed on all")
    return results.distinct(arm, gate.keys, held)


def _refuse_missing(results: Results, gate: Gate) -> None:
    """Refuse a gate one of whose arms, datasets or metrics has no scores by query."""
    for arm in gate.arms:
        refuse_unknown_arm(results, arm)
        for key in gate.keys:
            if not results.measured(key, arm):
                held = [k for k in results.dataset_keys if results.measured(k, arm)]
                has = ", ".join(held) or "only tasks without queries"
                raise DataError(f"no {key} result of {arm}{did_you_mean(key, held)}; it has {has}")
            if key in results.keys_without_queries:
                raise DataError(
                    f"{key} has no queries: nothing is paired there, and no gate can judge it; choose another dataset"
                )
            for result in results.measured(key, arm):
                held = [result.main_metric, *result.per_query_metrics]
                if gate.metric not in held:
                    raise DataError(
                        f"no per-query {gate.metric!r} in the {key} result of {arm}{did_you_mean(gate.metric, held)}; "
                        f"it holds {', '.join(held)}"
                    )
