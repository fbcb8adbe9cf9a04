"""Which systems are among the best, and which rank each may have, from the tests between every two of them.

A system is among the best unless some other one is better, by a one-sided test at .05 that is corrected for all others
(Bonferroni). The truly best system is left out of at most 5 % of tables: only its own tests can do that, so that the
other systems need no correction (multiple comparisons with the best, Hsu 1984). The interval of a rank counts the
systems that are surely ahead and surely behind, by two-sided tests at .05, corrected by Holm for the tests of this
system: it misses the rank in at most 5 % of tables, and holds for each system by itself.

Asked to hold for all systems together, the intervals of ranks count what the simultaneous intervals of all differences
exclude (Mohamad, Goeman & van Zwet 2021; Klein, Wright & Wieczorek 2020), and the set of the best uses, for each
system, max-t over its differences in place of Bonferroni (Hsu's constants).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.multiplicity import joint_of
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.simultaneous import Joint, corrected, level
from unimoe.core.grouping import gathered

FEWEST = 3  # systems: of two, their test says it all


class Standing(NamedTuple):
    """A system among others on one dataset, or on the average of several."""

    system: str
    mean: float  # in the metric's unit
    rank: int  # by the mean, from 1; equal means share the better rank
    ranks: tuple[int, int]  # the 95 % interval of its rank
    is_among_best: bool


def standings(comparisons: Iterable[Comparison]) -> dict[tuple[tuple[str, ...], str], tuple[Standing, ...]]:
    """Return the systems of each place and metric, best first, where every two of three or more were compared."""
    found = {}
    for place, here in gathered(((c.place, c.metric), c) for c in comparisons).items():
        means = {system: mean for c in here for system, mean in zip((c.system, c.baseline), c.means, strict=True)}
        together = joint_of(here) if any(c.simultaneous for c in here) else None
        tests = {(c.system, c.baseline): (c.delta, c.p_alone if together else c.p) for c in here}
        if len(means) >= FEWEST and len({*map(frozenset, tests)}) == len(means) * (len(means) - 1) // 2:
            names, draws = together or ([*means], None)
            found[place] = standings_of({name: means[name] for name in names}, tests, draws)
    return found


def standings_of(
    means: Mapping[str, float],
    tests: Mapping[tuple[str, str], tuple[float, float | None]],
    together: Joint | None = None,
) -> tuple[Standing, ...]:
    """Return systems, best first, by their means and the tests of every two of them.

    A test is the first system minus the second, and its two-sided p; None, where there is no test, tells nothing.
    ``together``, how the means scatter in the order of ``means``, makes the intervals of ranks hold for all systems.
    """
    systems = range(len(means))
    allowed = dict.fromkeys(means, ALPHA / (len(means) - 1))  # one-sided p below which another system is better
    if together:
        sets = [[(place, [*systems[:place], *systems[place + 1 :]])] for place in systems]
        allowed = {name: level(together.smallest_p(of, one_sided=True)) for name, of in zip(means, sets, strict=True)}
    others, found = len(means) - 1, []
    for system in sorted(means, key=lambda name: -means[name]):
        own = [(delta if system == first else -delta, 1.0 if p is None else p)
               for (first, second), (delta, p) in tests.items() if system in (first, second)]  # fmt: skip
        p_values = [corrected(p, together.of_all) for _, p in own] if together else holm([p for _, p in own])
        sure = [delta for (delta, _), p in zip(own, p_values, strict=True) if p < ALPHA]
        found.append(
            Standing(
                system,
                means[system],
                rank=1 + sum(mean > means[system] for mean in means.values()),
                ranks=(1 + sum(delta < 0 for delta in sure), others + 1 - sum(delta > 0 for delta in sure)),
                is_among_best=not any(delta < 0 and p / 2 < allowed[system] for delta, p in own),
            )
        )
    return tuple(found)


def best_of(found: Sequence[Standing]) -> list[str]:
    """Return the systems that are among the best."""
    return [one.system for one in found if one.is_among_best]
