"""Many systems at once: which are among the best, which rank each may have, and the choice of one by its scores.

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
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.simultaneous import Joint, corrected, joint, level
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.grouping import gathered

FEWEST = 3  # systems: of two, their test says it all
_MOST_SETTINGS = 10**9  # beyond any search; a number that no float holds could correct no p

Chosen: TypeAlias = Mapping[str, str | int | Sequence[str]]  # by system: ``dev``, or the settings that it was the best
# of on the test data: their number, or their names where all are here


def check_chosen(chosen: Chosen, systems: Sequence[str]) -> None:
    """Refuse a choice of a system that is not here, or from fewer than two settings, by a UsageError."""
    if not isinstance(chosen, Mapping):
        raise UsageError("chosen: give {system: dev, a number of settings, or their names}")
    for system, settings in chosen.items():
        if settings != "dev" and (isinstance(settings, str) or not isinstance(settings, int | Sequence)):
            raise UsageError(f"chosen: {system} from {settings!r}; write dev, a number of settings, or a list of names")
        named = [] if isinstance(settings, str | int) else settings
        for name in (system, *named):
            if name not in systems:
                raise UsageError(f"chosen: no system {name!r}{did_you_mean(name, systems)}; here: {', '.join(systems)}")
        number = settings if isinstance(settings, int) else len({system, *named})
        if not 2 <= number <= _MOST_SETTINGS and settings != "dev":
            raise UsageError(
                f"chosen: {system} from {number} settings; give the number tried, 2 to {_MOST_SETTINGS:,}, or dev"
            )


def corrected_together(rows: Sequence[Comparison], chosen: Chosen, *, simultaneous: bool) -> list[Comparison]:
    """Correct tests of systems that were chosen on the test data, and add what holds for every two of a place together.

    Whichever setting is best, its tests are among those of all settings: their number corrects them (Bonferroni), or
    where the settings are here and every two systems were compared, how they move together (max-t).
    """
    found = list(rows)
    places = gathered(((c.place, c.metric), place) for place, c in enumerate(rows))
    for here in places.values() if chosen or simultaneous else ():
        names, together = joint_of([rows[place] for place in here])
        for place in here:
            c = rows[place]
            both = {c.system, c.baseline} <= {system for system, of in chosen.items() if of != "dev"}
            for system, other in ((c.system, c.baseline), (c.baseline, c.system)):
                if system in chosen:
                    c = _as_chosen(c, system, other, chosen[system], names, None if both else together)
            if simultaneous and together and c.p_alone is not None and c.difference.p is not None:
                wide = replace(c.difference, alpha=level(together.of_all) / c.tried, by_t=True)
                p = max(c.difference.p, corrected(c.p_alone, together.of_all))
                c = replace(c, p_simultaneous=p, simultaneous=wide)
            found[place] = c
    return found


def _as_chosen(
    c: Comparison, system: str, other: str, given: str | int | Sequence[str], names: list[str], together: Joint | None
) -> Comparison:
    if isinstance(given, str):
        said = f"{system} was chosen on dev data: its tests and intervals are as they are"
        return replace(c, chosen=(*c.chosen, said))
    settings = [] if isinstance(given, int) else list(dict.fromkeys([system, *given]))
    number = given if isinstance(given, int) else len(settings)
    how, tried, by_t = "Bonferroni", c.tried * number, False
    p, alpha = c.p and min(1.0, number * c.p), (c.difference.alpha or ALPHA) / number
    if settings and together and set(settings) <= set(names):
        rivals = [names.index(setting) for setting in settings if setting != other]
        smallest = together.smallest_p([(names.index(other), rivals)])
        how, tried, by_t = f"max-t over {', '.join(settings)}", 1, True
        p, alpha = c.p and c.p_alone and max(c.p, corrected(c.p_alone, smallest)), level(smallest)
    said = f"{system} was chosen on these test data from {number:,} settings: its tests are corrected for that ({how})"
    elsewhere = c.elsewhere and replace(c.elsewhere, alpha=(c.elsewhere.alpha or ALPHA) / number)
    difference = replace(c.difference, alpha=alpha, by_t=by_t)
    return replace(c, p=p, tried=tried, chosen=(*c.chosen, said), difference=difference, elsewhere=elsewhere)


def joint_of(here: Sequence[Comparison]) -> tuple[list[str], Joint | None]:
    """Return the systems of one place and metric, and how their means scatter where every two were compared."""
    names = list(dict.fromkeys(system for c in here for system in (c.baseline, c.system)))
    runs = {system: number for c in here for system, number in zip((c.system, c.baseline), c.runs, strict=True)}
    terms = {(names.index(c.system), names.index(c.baseline)): c.difference.terms for c in here}
    every = len({frozenset((c.system, c.baseline)) for c in here}) == len(names) * (len(names) - 1) // 2
    return names, joint(terms, [runs[name] for name in names]) if every else None


def means_of(here: Iterable[Comparison]) -> dict[str, float]:
    """Return the mean of each system of one place and metric, by the test that takes most of its runs."""
    by_runs = sorted(here, key=lambda c: max(c.runs))
    return {system: mean for c in by_runs for system, mean in zip((c.system, c.baseline), c.means, strict=True)}


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
        means = means_of(here)
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
    of_system: dict[str, list[tuple[float, float]]] = {name: [] for name in means}
    for (first, second), (delta, p) in tests.items():
        of_system[first].append((delta, 1.0 if p is None else p))
        of_system[second].append((-delta, 1.0 if p is None else p))
    for system in sorted(means, key=lambda name: -means[name]):
        own = of_system[system]
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
