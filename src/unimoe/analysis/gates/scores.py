"""The scores a gate judges: both arms on its datasets, queries in one order, each arm with its own training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, takewhile

import numpy as np

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.statistics.variance import Array, Moments, groups_of, moments
from unimoe.core.errors import DataError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.metrics import parse_metric
from unimoe.metrics.scoring import dataset_group
from unimoe.results.folder import Results, Seed


@dataclass(frozen=True)
class GateScores:
    """What a gate judges."""

    arms: tuple[str, str]  # specialist and joint, or system and baseline
    seeds: tuple[tuple[Seed, ...], tuple[Seed, ...]]  # of each arm, as in ``collect``; ``(None,)`` without any
    paired: bool  # whether equal seeds make a pair, which the experiment declares
    by_dataset: dict[str, tuple[Array, Array]]  # scores of both arms, ``(seeds, queries)``, in the gate's order
    levels: tuple[int, ...] = ()  # lowest relevant grades, where the metric depends on them
    numbered: bool = True  # whether seeds are those of trainings; those of run files are only their places in a list

    @property
    def groups(self) -> dict[str, list[str]]:
        """The datasets by what counts once: CQADupStack's forums together, any other dataset alone."""
        return gathered((dataset_group(dataset), dataset) for dataset in self.by_dataset)

    @property
    def fewest(self) -> tuple[int, int]:
        """The number of runs of each arm on the dataset where it has fewest."""
        first, second = (min(len(block[arm]) for block in self.by_dataset.values()) for arm in (0, 1))
        return first, second

    @property
    def single(self) -> tuple[str, ...]:
        """The arms with one training seed on a dataset, for which other seeds cannot be judged."""
        held = zip(self.arms, self.fewest, self.seeds, strict=True)
        return tuple(arm for arm, number, seeds in held if number == 1 and seeds[0] is not None)

    @property
    def apart(self) -> tuple[int, ...]:
        """The places of the arms whose datasets have no run in common by its name."""
        return tuple(arm for arm, number in enumerate(self.fewest) if number < len(self.seeds[arm]))

    @cached_property
    def moments(self) -> Moments:
        """Means and variances of both arms on every dataset."""
        return moments(list(self.by_dataset.values()), groups_of(self.fewest, paired=self.paired), self.apart)

    @cached_property
    def run_means(self) -> tuple[Array, Array]:
        """Mean score of every run on every dataset, ``(seeds, datasets)`` for each arm; no row of runs on one alone."""
        blocks = list(self.by_dataset.values())
        first, second = (
            np.empty((0, len(blocks))) if arm in self.apart else np.stack([b[arm].mean(axis=1) for b in blocks], axis=1)
            for arm in (0, 1)
        )
        return first, second

    @property
    def means(self) -> Array:
        """Mean score of each arm on every dataset, ``(datasets, arms)``."""
        return np.array([[block.mean() for block in arms] for arms in self.by_dataset.values()])

    def first(self, number: int) -> GateScores:
        """Return the same with the first runs of each arm: what a look at so many seeds sees."""
        return self._keeping(lambda arm, place, seed: place < number)

    def without(self, seed: Seed, arm: int | None = None) -> GateScores:
        """Return the same without one seed, of one arm or of both."""
        return self._keeping(lambda of_arm, place, other: other != seed or arm not in (None, of_arm))

    def _keeping(self, keep: Callable[[int, int, Seed], bool]) -> GateScores:
        """Return the same with the runs kept, by the arm, the place among its runs on a dataset, and the seed."""
        kept: tuple[dict[Seed, None], dict[Seed, None]] = ({}, {})  # as sets in order
        by_dataset: dict[str, tuple[Array, Array]] = {}
        starts = [0, 0]
        for dataset, blocks in self.by_dataset.items():
            cut = []
            for arm, block in enumerate(blocks):
                own = self.seeds[arm][starts[arm] : starts[arm] + len(block)]
                starts[arm] += len(block) if arm in self.apart else 0  # there the seeds of datasets follow one another
                here = [keep(arm, place, seed) for place, seed in enumerate(own)]
                kept[arm].update(dict.fromkeys(compress(own, here)))
                cut.append(block[here])
            by_dataset[dataset] = (cut[0], cut[1])
        return replace(self, seeds=(tuple(kept[0]), tuple(kept[1])), by_dataset=by_dataset)


def collect(results: Results, gate: Gate, look: int | None = None) -> GateScores:
    """Find the scores of a gate, up to a look; a DataError where an arm, dataset, seed or metric has no results.

    Where the experiment declares that seeds pair, both arms are cut to the seeds they share, if these are two or more.
    Otherwise each arm has all the seeds that it has on every dataset; where no two datasets share one, all its seeds:
    runs are matched across datasets by their names, never by their places in a list. Seeds with the same scores are
    one run.
    """
    _refuse_missing(results, gate)
    first, second = (_seeds(results, gate, arm) for arm in gate.arms)
    common = results.paired_seeds(gate.arms, gate.keys, first, second)

    def here(arm: str, key: str, seeds: Sequence[Seed]) -> tuple[Seed, ...]:
        return tuple(seed for seed in seeds if results.result(arm, seed, key) is not None)

    held = [[here(arm, key, common) for arm in gate.arms] for key in gate.keys]
    paired = bool(common) and all(a == b and len(a) > 1 for a, b in held)
    seeds = (common, common) if paired else (first, second)
    by_dataset = {}
    for dataset, key in zip(gate.datasets, gate.keys, strict=True):
        a, b = (
            results.scores(arm, key, here(arm, key, own), gate.metric)
            for arm, own in zip(gate.arms, seeds, strict=True)
        )
        by_dataset[dataset] = (a, b)
    measured = [result for key in gate.keys for arm in gate.arms for result in results.measured(key, arm)]
    levels = {result.relevance_level for result in measured} if parse_metric(gate.metric).binary else set()
    numbered = all(result.identity.checkpoint != "none" for result in measured)
    whole = GateScores(gate.arms, seeds, paired, by_dataset, tuple(sorted(levels)), numbered)
    return whole.first(look) if look else whole


def restricted(results: Results, gate: Gate, *, datasets: bool = True) -> tuple[Gate, tuple[str, ...]]:
    """Return the gate with only those of its datasets and seeds that have results, and what that leaves out.

    Without ``datasets``, all of these must have results. A gate without any is a DataError, as in ``collect``.
    """
    there = zip(gate.datasets, gate.keys, strict=True)
    here = [dataset for dataset, key in there if all(results.measured(key, arm) for arm in gate.arms)]
    if not here or (here != gate.datasets and not datasets):
        _refuse_missing(results, gate)
    reasons, cut = [], gate.model_copy(update={"datasets": here})
    if here != gate.datasets:
        reasons.append(f"no result yet on {', '.join(d for d in gate.datasets if d not in here)}")
    if gate.seeds is not None:
        trained = [arm for arm in gate.arms if any(results.result(arm, None, key) is None for key in cut.keys)]
        held = [results.seeds_of_all(arm, cut.keys) for arm in trained]
        kept = [seed for seed in gate.seeds if all(seed in of_arm for of_arm in held)]
        if kept != gate.seeds:
            reasons.append(f"no result yet of seed {', '.join(str(seed) for seed in gate.seeds if seed not in kept)}")
        cut = cut.model_copy(update={"seeds": kept or gate.seeds})
    return cut, tuple(reasons)


def refuse_unknown_arm(results: Results, arm: str) -> None:
    """Refuse an arm without results by a DataError that names the closest."""
    if arm not in results:
        raise DataError(f"no results of arm {arm!r}{did_you_mean(arm, results)}; here: {', '.join(results)}")


def _seeds(results: Results, gate: Gate, arm: str) -> tuple[Seed, ...]:
    """Return the seeds of an arm's runs; ``(None,)`` where it has none at all."""
    if all(results.result(arm, None, key) is not None for key in gate.keys):
        return (None,)
    held = results.seeds_of_all(arm, gate.keys)
    if gate.seeds is not None:
        absent = [str(seed) for seed in gate.seeds if seed not in held]
        if absent and not gate.looks:
            raise DataError(f"no result of {arm} for seed {', '.join(absent)}; the gate registers its seeds")
        # Looks take seeds in ascending order, and skip none: a seed whose score displeases cannot be left out.
        held = tuple(takewhile(held.__contains__, sorted(gate.seeds)))
        if not held:
            raise DataError(f"no result of {arm} for seed {min(gate.seeds)}, the first that the gate registers")
    if held:
        return results.distinct(arm, gate.keys, held)
    apart = tuple(seed for key in gate.keys for seed in results.distinct(arm, [key], results.seeds(arm, key)))
    if len(set(apart)) < len(apart):
        raise DataError(f"{arm} has no seed with a result on each of {', '.join(gate.keys)}; evaluate one seed on all")
    return apart


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
