"""Differences between the arms of a study, as cells of its table: one family, that of the table which shows them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from unimoe.analysis.comparisons import difference, interval_of_mean
from unimoe.analysis.formats import signed
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.tables.cells import ABSENT, Cell
from unimoe.results.folder import Results

Asked = TypeVar("Asked", bound=Hashable)


@dataclass(frozen=True)
class Arms:
    """Scores of two arms, ``(seeds, queries)``, on the same queries; one row for an arm without seeds."""

    system: Array
    baseline: Array
    paired: bool  # whether row i of one belongs to row i of the other


@dataclass(frozen=True)
class Difference:
    """System minus baseline in the metric's unit, with its 95 % interval and two-sided p after Holm, if any."""

    value: float
    interval: tuple[float, float] | None
    p: float | None

    @property
    def cells(self) -> tuple[Cell, Cell, Cell]:
        """Difference in points, its interval, p."""
        ends = [signed(100.0 * end, 1, keep_side=True) for end in self.interval or ()]
        return Cell.signed(100.0 * self.value), Cell(" to ".join(ends) or ABSENT), Cell.p(self.p)


NO_DIFFERENCE = (Cell(ABSENT), Cell(ABSENT), Cell(ABSENT))  # of an arm that is compared with nothing

TESTED = (
    "Differences, their 95 % intervals and p are of the model of variance, for other queries and other seeds (queries "
    "alone where neither arm has several seeds); p is corrected by Holm over all differences of this table. "
)
"""What the p of a study's table holds for; the table adds which seeds pair."""


def differences(asked: Mapping[Asked, Arms]) -> dict[Asked, Difference]:
    """Compare arms in pairs; all of them are one family, that of the table which shows them."""
    found = {name: difference(arms.system, arms.baseline, paired=arms.paired) for name, arms in asked.items()}
    p_values = {name: each.p for name, (each, unfit) in found.items() if not unfit and each.p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return {
        name: Difference(each.value, None if unfit else each.interval, corrected.get(name))
        for name, (each, unfit) in found.items()
    }


def of_seeds(results: Results, seeds: Collection[int]) -> Results:
    """Return the results of these seeds and of arms without seeds: the folder may hold those of a longer comparison."""
    return Results(results.output_dir, [one for one in results.results if one.seed is None or one.seed in seeds])


def pair_up(results: Results, key: str, system: str, baseline: str) -> bool:
    """Return whether the seeds of two arms pair on one ``task/dataset``: the same ones, and declared to."""
    alike = results.seeds(system, key) == results.seeds(baseline, key)
    return alike and results.seeds_pair((system, baseline), [key])


def mean_interval(scores: Array) -> Cell:
    """Return the 95 % interval of a mean in points."""
    return Cell(" to ".join(f"{100.0 * end:.1f}" for end in interval_of_mean(scores) or ()) or ABSENT)
