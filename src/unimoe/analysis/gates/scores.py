"""The scores of two arms that a gate or a comparison judges: queries in one order, each arm with its training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.statistics.estimates import MIN_DIFFERING, Estimate, Quantity, estimate
from unimoe.analysis.statistics.variance import Array, Drawn, Estimand, Moments, groups_of, moments
from unimoe.core.errors import DataError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.metrics.scoring import dataset_group
from unimoe.results.clusters import Codes
from unimoe.results.folder import Results, Seed


class Runs(NamedTuple):
    """The runs of one arm on one dataset."""

    seeds: tuple[Seed, ...]  # ``(None,)`` without any
    scores: Array  # ``(seeds, queries)``, or by clusters of queries where there are some


class Differing(NamedTuple):
    """On how many queries two arms differ by more than their runs do, and whether that is enough to decide on."""

    queries: int
    beyond_runs: bool  # whether there are runs that differ
    enough: bool

    def __str__(self) -> str:
        """Say it as a clause without a subject."""
        return f"differ{' by more than their runs do' if self.beyond_runs else ''} on {self.queries:,}"


# A difference of a query counts from so many standard deviations of the runs' noise in it, noise from a tenth of a
# point on: less is as good as none. Where few queries differ by more, the noise of all decides with them, unless those
# few make up nearly all of the differences' squares.
_FEWEST_ALIKE = 10  # topics on the same datasets that are a part of their own
_BEYOND, _LEAST_NOISE, _MOST_CARRIED, _ROUNDING = 3.0, 1e-3, 0.95, 1e-12


@dataclass(frozen=True)
class Aligned:
    """The scores of two arms."""

    arms: tuple[str, str]  # specialist and joint, or system and baseline
    paired: bool  # whether equal seeds make a pair, which the experiment declares
    by_dataset: dict[str, tuple[Runs, Runs]]  # of both arms, in the order asked for
    numbered: bool = True  # whether seeds are those of trainings; those of run files are only their places in a list
    shares: Mapping[str, Array | float] = field(default_factory=dict)  # of a dataset with clusters: ``Results.shares``
    drawn: tuple[Drawn, ...] = ()  # what is drawn together, where that is not each dataset's queries by themselves
    # Mean scores ``(runs, datasets)`` of other systems; their runs share one variance with these. None: each its own.
    pool: tuple[Array, ...] | None = None

    @property
    def groups(self) -> dict[str, list[str]]:
        """The datasets by what counts once: CQADupStack's forums together, any other dataset alone."""
        return gathered((dataset_group(dataset), dataset) for dataset in self.by_dataset)

    @cached_property
    def seeds(self) -> tuple[tuple[Seed, ...], tuple[Seed, ...]]:
        """The seeds of each arm on any dataset."""
        first, second = (united(runs[arm].seeds for runs in self.by_dataset.values()) for arm in (0, 1))
        return first, second

    @cached_property
    def fewest(self) -> tuple[int, int]:
        """The number of runs of each arm on the dataset where it has fewest."""
        first, second = (min(len(runs[arm].seeds) for runs in self.by_dataset.values()) for arm in (0, 1))
        return first, second

    @property
    def single(self) -> tuple[str, ...]:
        """The arms with one training seed on a dataset, for which other seeds cannot be judged."""
        held = zip(self.arms, self.fewest, self.seeds, strict=True)
        return tuple(arm for arm, number, seeds in held if number == 1 and seeds[0] is not None)

    @property
    def apart(self) -> tuple[int, ...]:
        """The places of the arms with datasets that have no run in common by its name."""
        return tuple(arm for arm, number in enumerate(self.fewest) if number < len(self.seeds[arm]))

    @property
    def means(self) -> Array:
        """Mean score of each arm on every dataset, ``(datasets, arms)``."""
        return np.array([[runs.scores.mean() for runs in arms] for arms in self.by_dataset.values()])

    @cached_property
    def moments(self) -> Moments:
        """Means and variances of both arms on every dataset."""
        blocks = [(first.scores, second.scores) for first, second in self.by_dataset.values()]
        return moments(blocks, groups_of(self.fewest, paired=self.paired), self.apart, self.drawn, self.pool)

    @property
    def pooled(self) -> int:
        """The number of systems that share one variance of a run; 0 where each has its own."""
        number = len(self.moments.groups) + len(self.pool or ())
        return number if self.moments.pooled and number > 1 else 0

    @cached_property
    def differing(self) -> Differing:
        """On how many draws, queries or clusters or topics, the two arms differ, their runs averaged."""
        carried, whole, most, alone = 0.0, 0.0, 0.0, 0
        together = [np.zeros(of.number, dtype=bool) for of in self.drawn]
        for place, (dataset, (first, second)) in enumerate(self.by_dataset.items()):
            gap = first.scores.mean(axis=0) - second.scores.mean(axis=0)
            gap = np.abs(gap - gap.mean() * (1.0 - self.shares.get(dataset, 1.0)))
            noise = self._noise(first.scores, second.scores)
            beyond = gap > max(_ROUNDING, _BEYOND * noise)
            alone += 0 if self.drawn else int(beyond.sum())
            for of, found in zip(self.drawn, together, strict=True):
                if place in of.parts:
                    columns, draws, _ = of.parts[place]
                    found[beyond[columns] if draws is None else draws[beyond[columns]]] = True
            carried, whole, most = carried + (gap[beyond] ** 2).sum(), whole + (gap**2).sum(), max(most, noise)
        number = alone + sum(int(found.sum()) for found in together)
        few = sum(self.moments.queries) < MIN_DIFFERING
        enough = number >= MIN_DIFFERING or (most >= _LEAST_NOISE and carried < _MOST_CARRIED * whole and not few)
        return Differing(number, most > _ROUNDING, enough)

    def _noise(self, first: Array, second: Array) -> float:
        """Return the standard deviation that runs give to a query's difference of means, averaged over queries."""
        if self.paired and len(first) > 1:
            return math.sqrt((first - second).var(axis=0, ddof=1).mean() / len(first))
        several = [scores for scores in (first, second) if len(scores) > 1]
        return math.sqrt(sum(scores.var(axis=0, ddof=1).mean() / len(scores) for scores in several))

    def estimate(self, quantity: Quantity, estimand: Estimand = "seeds_and_queries") -> Estimate:
        """Estimate a quantity of both arms; where no arm has several runs, these very runs are what it holds for."""
        as_they_are = estimand != "seeds" and not self.moments.groups
        return estimate(self.moments, quantity, "queries" if as_they_are else estimand)

    def run_means(self, arm: int) -> dict[Seed, Array]:
        """Return the mean scores of each run of an arm on all datasets, by its seed; none of runs on one dataset."""
        if arm in self.apart:
            return {}
        means = np.stack([runs[arm].scores.mean(axis=1) for runs in self.by_dataset.values()], axis=1)
        return dict(zip(self.seeds[arm], means, strict=True))

    def first(self, number: int) -> Aligned:
        """Return the same with the first runs of each arm: what a look at so many seeds sees."""
        return self._keeping(lambda arm, runs: [place < number for place in range(len(runs.seeds))])

    def without(self, seed: Seed, arm: int | None = None) -> Aligned:
        """Return the same without one seed, of one arm or of both."""
        return self._keeping(lambda of, runs: [other != seed or arm not in (None, of) for other in runs.seeds])

    def _keeping(self, kept: Callable[[int, Runs], list[bool]]) -> Aligned:
        def cut(arm: int, runs: Runs) -> Runs:
            here = kept(arm, runs)
            return Runs(tuple(compress(runs.seeds, here)), runs.scores[here])

        return replace(self, by_dataset={d: (cut(0, a), cut(1, b)) for d, (a, b) in self.by_dataset.items()})


def align(
    results: Results,
    arms: tuple[str, str],
    keys: Sequence[str],
    metric: str | None,
    seeds: Sequence[Sequence[tuple[Seed, ...]]] | None = None,
) -> Aligned:
    """Align two arms on ``task/dataset`` keys of one task by a metric, by default the main one.

    Where the experiment declares that seeds pair, both arms are cut to the seeds they share, if these are two or more.
    Otherwise each arm has its ``seeds`` on each key, by default those of ``seeds_on``.
    """
    seeds = seeds or [seeds_on(results, arm, keys) for arm in arms]
    first_seeds, second_seeds = map(united, seeds)
    common = [seed for seed in first_seeds if seed in second_seeds] if results.seeds_pair(arms, keys) else []
    shared = [[tuple(s for s in common if results.result(arm, s, key)) for key in keys] for arm in arms]
    paired = shared[0] == shared[1] and all(len(of_key) > 1 for of_key in shared[0])
    by_dataset, shares = {}, {}
    for key, *used in zip(keys, *(shared if paired else seeds), strict=True):
        first, second = (
            Runs(of_arm, results.draws(arm, key, of_arm, metric)) for arm, of_arm in zip(arms, used, strict=True)
        )
        dataset = key.partition("/")[2]
        by_dataset[dataset], shares[dataset] = (first, second), results.shares(key)
    measured = (result for key in keys for arm in arms for result in results.measured(key, arm))
    numbered = all(result.identity.checkpoint != "none" for result in measured)
    return Aligned(arms, paired, by_dataset, numbered, shares, drawn_on(results, keys))


def drawn_on(results: Results, keys: Sequence[str]) -> tuple[Drawn, ...]:
    """Return what is drawn together on some datasets; nothing where each one's queries are drawn by themselves."""
    topics, labelled = results.topics(keys), [results.labelled(key) for key in keys]
    if topics is None and any(of is not None for of in labelled):
        ends = np.cumsum([0, *(len(results.queries(key)) for key in keys)])
        topics = [np.arange(*ends[place : place + 2], dtype=np.intp) for place in range(len(keys))]
    return drawn_together(topics, labelled) if topics else ()


def drawn_together(topics: Sequence[Codes], labelled: Sequence[NDArray[np.bool_] | None] = ()) -> tuple[Drawn, ...]:
    """Return what is drawn together: the topics of datasets that share some, the queries of each other dataset.

    Topics with human judgments on any of the datasets are drawn apart from those with a model's alone. Of datasets that
    share some topics, those of one alone are a part by themselves: the variance of each part has its own freedom.
    """
    families: list[tuple[set[int], set[int]]] = []  # places of datasets, and the topics there
    for place, codes in enumerate(topics):
        own = set(codes.tolist())
        joined = [family for family in families if not own.isdisjoint(family[1])]
        families = [family for family in families if family not in joined]
        families.append(({place}.union(*(f[0] for f in joined)), own.union(*(f[1] for f in joined))))
    human = [{*codes[of].tolist()} for codes, of in zip(topics, labelled, strict=False) if of is not None]
    of_people = set[int]().union(*human)
    found = []
    for places, numbers in sorted(families, key=lambda family: min(family[0])):
        for apart in filter(None, (numbers - of_people, numbers & of_people)):
            held = {place: {*topics[place].tolist()} for place in sorted(places)}
            alike = gathered((tuple(p for p, own in held.items() if n in own), n) for n in sorted(apart)).values()
            most, *others = sorted(alike, key=len, reverse=True)
            most += [number for few in others if len(few) < _FEWEST_ALIKE for number in few]
            alone = [most, *(enough for enough in others if len(enough) >= _FEWEST_ALIKE)]
            kinds = dict(enumerate(labelled))
            found += [_drawn(own, {place: (topics[place], kinds.get(place)) for place in held}) for own in alone]
    return tuple(found)


def _drawn(own: Sequence[int], topics: Mapping[int, tuple[Codes, NDArray[np.bool_] | None]]) -> Drawn:
    """Return some topics with their queries on some datasets."""
    order, parts = {number: draw for draw, number in enumerate(sorted(own))}, {}
    for place, (codes, labelled) in topics.items():
        at = np.flatnonzero(np.isin(codes, own))
        if len(at):
            parts[place] = at, np.array([order[number] for number in codes[at].tolist()]), labelled
    return Drawn(len(own), parts)


def seeds_on(results: Results, arm: str, keys: Sequence[str]) -> list[tuple[Seed, ...]]:
    """Return the seeds of an arm's runs on each key: those that it has on all, else its own of each.

    Runs are matched across datasets by their names, never by their places in a list. Seeds with the same scores are one
    run; an arm without seeds has ``(None,)``.
    """
    own = [tuple(result.seed for result in results.measured(key, arm)) for key in keys]
    if len(keys) == 1 or set(own) == {(None,)}:
        return own  # on one dataset, a run without a seed counts like others, as in the mean that tables show
    common = results.distinct(arm, keys, results.seeds_of_all(arm, keys))
    return [common] * len(keys) if common else own


def united(by_dataset: Iterable[tuple[Seed, ...]]) -> tuple[Seed, ...]:
    """Return each seed once, in the order in which they first come."""
    return tuple(dict.fromkeys(chain.from_iterable(by_dataset)))


def collect(results: Results, gate: Gate, look: int | None = None) -> Aligned:
    """Find the scores of a gate, up to a look; a DataError where an arm, dataset, seed or metric has no results."""
    _refuse_missing(results, gate)
    whole = align(results, gate.arms, gate.keys, gate.metric, [_seeds(results, gate, arm) for arm in gate.arms])
    whole = replace(whole, pool=()) if gate.pool_runs else whole
    return whole.first(look) if look else whole


def restricted(results: Results, gate: Gate, *, datasets: bool) -> tuple[Gate, list[str]]:
    """Return the gate with only those of its datasets and seeds that have results, and what that leaves out.

    Without ``datasets``, all of these must have results. A gate without any is a DataError, as in ``collect``.
    """
    there = zip(gate.datasets, gate.keys, strict=True)
    here = [dataset for dataset, key in there if all(results.measured(key, arm) for arm in gate.arms)]
    if not here or (here != gate.datasets and not datasets):
        _refuse_missing(results, gate)
    absent = {"on": [dataset for dataset in gate.datasets if dataset not in here], "of seed": []}
    cut = gate.model_copy(update={"datasets": here})
    if gate.seeds is not None:
        trained = [arm for arm in gate.arms if any(results.result(arm, None, key) is None for key in cut.keys)]
        held = [results.seeds_of_all(arm, cut.keys) for arm in trained]
        kept = [seed for seed in gate.seeds if all(seed in of_arm for of_arm in held)]
        absent["of seed"] = [str(seed) for seed in gate.seeds if seed not in kept]
        cut = cut.model_copy(update={"seeds": kept or gate.seeds})
    return cut, [f"no result yet {what} {', '.join(names)}" for what, names in absent.items() if names]


def _seeds(results: Results, gate: Gate, arm: str) -> list[tuple[Seed, ...]]:
    """Return the seeds of an arm's runs on each dataset, cut to those that the gate registers."""
    if all(results.result(arm, None, key) for key in gate.keys):
        return [(None,)] * len(gate.keys)
    found = seeds_on(results, arm, gate.keys)
    if gate.seeds is not None:
        held = results.seeds_of_all(arm, gate.keys)
        absent = [str(seed) for seed in gate.seeds if seed not in held]
        if absent and not gate.looks:
            raise DataError(f"no result of {arm} for seed {', '.join(absent)}; the gate registers its seeds")
        # Looks take seeds in ascending order, and skip none: nobody can leave out a seed because its score displeases.
        held = tuple(takewhile(held.__contains__, sorted(gate.seeds)))
        if not held:
            raise DataError(f"no result of {arm} for seed {min(gate.seeds)}, the first that the gate registers")
        return [results.distinct(arm, gate.keys, held)] * len(gate.keys)
    if len(set(found)) > 1 and len(united(found)) < sum(map(len, found)):
        raise DataError(f"{arm} has no seed with a result on each of {', '.join(gate.keys)}; evaluate one seed on all")
    return found


def _refuse_missing(results: Results, gate: Gate) -> None:
    """Refuse a gate if arms, datasets or the metric have no scores by query: a DataError names all that lack."""
    lacking = [f"no results of arm {arm!r}{did_you_mean(arm, results)}" for arm in gate.needed if arm not in results]
    if lacking:
        lacking[-1] += f"; here: {', '.join(results)}"
    lacking += _lacking(results, gate, [arm for arm in gate.arms if arm in results])
    if lacking:
        raise DataError("; ".join(lacking))


def _lacking(results: Results, gate: Gate, arms: Sequence[str]) -> Iterator[str]:
    """Yield the datasets of a gate on which arms have no scores by query, or none by the gate's metric."""
    for key in gate.keys:
        if key in results.keys_without_queries:
            yield f"{key} has no queries: nothing is paired there, and no gate can judge it; choose another dataset"
            continue
        if absent := [arm for arm in arms if not results.measured(key, arm)]:
            held = [k for k in results.dataset_keys if all(results.measured(k, arm) for arm in absent)]
            has = f"{'it has' if len(absent) == 1 else 'both have'} {', '.join(held) or 'only tasks without queries'}"
            yield f"no {key} result of {' and '.join(absent)}{did_you_mean(key, held)}; {has}"
        measured = [result for arm in arms for result in results.measured(key, arm)]
        without = [r for r in measured if gate.metric not in (r.main_metric, *r.per_query_metrics)]
        if without:
            metrics = [without[0].main_metric, *without[0].per_query_metrics]
            of = " and ".join(dict.fromkeys(result.config_name for result in without))
            hint = did_you_mean(gate.metric, metrics)
            yield f"no per-query {gate.metric!r} in the {key} result of {of}{hint}; it holds {', '.join(metrics)}"
