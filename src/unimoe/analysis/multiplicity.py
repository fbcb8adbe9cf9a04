"""Many differences at once, and the choice of one of many settings by its scores on the data that test it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.statistics.simultaneous import Joint, corrected, joint, level
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.grouping import gathered

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
        if number < 2 and settings != "dev":
            raise UsageError(f"chosen: {system} from {number} setting; give the number tried, 2 or more, or dev")


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
            if simultaneous and together and c.p_alone is not None:
                wide = replace(c.difference, alpha=level(together.of_all) / c.tried)
                c = replace(c, p_simultaneous=corrected(c.p_alone, together.of_all), simultaneous=wide)
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
    how, tried = "Bonferroni", c.tried * number
    p, alpha = c.p and min(1.0, number * c.p), (c.difference.alpha or ALPHA) / number
    if settings and together and set(settings) <= set(names):
        rivals = [names.index(setting) for setting in settings if setting != other]
        smallest = together.smallest_p([(names.index(other), rivals)])
        how, tried = f"max-t over {', '.join(settings)}", 1
        p, alpha = c.p and corrected(c.p, smallest), level(smallest)
    said = f"{system} was chosen on these test data from {number:,} settings: its tests are corrected for that ({how})"
    elsewhere = c.elsewhere and replace(c.elsewhere, alpha=(c.elsewhere.alpha or ALPHA) / number)
    difference = replace(c.difference, alpha=alpha)
    return replace(c, p=p, tried=tried, chosen=(*c.chosen, said), difference=difference, elsewhere=elsewhere)


def joint_of(here: Sequence[Comparison]) -> tuple[list[str], Joint | None]:
    """Return the systems of one place and metric, and how their means scatter where every two were compared."""
    names = list(dict.fromkeys(system for c in here for system in (c.baseline, c.system)))
    variances = np.zeros((len(names), len(names)))
    for c in here:
        pair = names.index(c.system), names.index(c.baseline)
        variances[pair] = variances[pair[::-1]] = c.difference.standard_error**2
    every = len({frozenset((c.system, c.baseline)) for c in here}) == len(names) * (len(names) - 1) // 2
    return names, joint(variances) if every else None
