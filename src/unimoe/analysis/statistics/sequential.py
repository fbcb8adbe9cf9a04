"""Labels that may be looked at more than once, at numbers of seeds that were fixed before.

Training a seed takes hours, so everybody looks after each. Who adds seeds until a label holds its confidence gets wrong
labels twice as often as one look promises. A gate that registers its looks asks for more confidence at each of them,
so that all together err as rarely as one look at the gate's confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtr

from unimoe.analysis.statistics.power import ENDLESS, at_size
from unimoe.analysis.statistics.variance import Held, Terms, held

FEWEST, MOST = 2, 100  # seeds at a look
_PATHS, _FUTURES = 200_000, 1_000


@cache
def confidence_at_looks(looks: tuple[int, ...], confidence: float) -> float:
    """Return the confidence that a label needs at each look for ``confidence`` over all, rounded up to three decimals.

    It is 1 minus the quantile, at 1 minus ``confidence``, of the smallest one-sided p over the looks, along paths of
    Student's t over seeds with the true value at the cutoff (the significance-level approach; Jennison & Turnbull
    2000, Group Sequential Methods, ch. 11). Queries are shared by all looks, which only raises the correlation between
    looks, so seeds alone are the worst case (Slepian 1962). The paths are drawn with a fixed seed.
    """
    if len(looks) == 1:
        return confidence
    rng = np.random.default_rng(0)
    total, squares, smallest = np.zeros(_PATHS), np.zeros(_PATHS), np.ones(2 * _PATHS)
    for number in range(1, looks[-1] + 1):
        seed = rng.standard_normal(_PATHS)
        total += seed
        squares += seed**2
        if number in looks:
            error = np.sqrt((squares - total**2 / number) / (number - 1) / number)
            p = stdtr(number - 1, total / number / error)
            # A path with all signs turned is as likely as the path itself, and its p is 1 - p.
            smallest = np.minimum(smallest, np.concatenate([p, 1.0 - p]))
    return math.ceil(1000.0 * (1.0 - float(np.quantile(smallest, 1.0 - confidence)))) / 1000.0


@dataclass(frozen=True)
class Outlook:
    """What the looks to come may bring if the true value is the one observed."""

    looks: tuple[int, ...]  # those to come
    seeds: float  # mean number of seeds of each arm when it ends
    chances: dict[str, float]  # of each label at the end, INCONCLUSIVE included


def outlook(
    terms: Terms, value: float, looks: Sequence[int], label_at: Callable[[Callable[[float], Held]], str]
) -> Outlook | None:
    """Draw the seeds to come, and judge each look; None where no look is left or no runs vary.

    New seeds scatter around the present value as the present ones do; queries stay. This is of first order: the scatter
    of few seeds is itself uncertain. ``label_at`` returns a label from the confidence on both sides of a cutoff.
    """
    now = int(min(terms.runs, default=0))
    to_come = tuple(look for look in looks if look > now)
    if not to_come or now < FEWEST:
        return None
    groups, of_queries = len(terms.runs), at_size(terms, ENDLESS, sum(terms.queries))
    of_seed = max(0.0, terms.variance - of_queries.variance) * now  # variance of the value over single seeds
    rng, ended, labels = np.random.default_rng(0), [], []
    for _ in range(_FUTURES):
        moved, squares, number, label = 0.0, groups * (now - 1) * of_seed, now, "INCONCLUSIVE"
        for look in to_come:
            new = look - number
            moved += rng.normal(0.0, math.sqrt(of_seed * new))
            squares += of_seed * rng.chisquare(groups * new)
            number, of_looks = look, groups * (look - 1)
            of_runs = squares / of_looks / look
            variance = of_queries.variance + of_runs
            parts = of_runs**2 / of_looks + of_queries.variance**2 / of_queries.freedom
            at, error = value + moved / look, math.sqrt(variance)
            freedom = variance**2 / parts if parts else math.inf
            skew = terms.third / variance**1.5 if variance else 0.0

            def at_cutoff(
                cutoff: float, at: float = at, error: float = error, t: float = freedom, skew: float = skew
            ) -> Held:
                return held((at - cutoff) / error, t, skew) if error else Held(at < cutoff, at >= cutoff)

            label = label_at(at_cutoff)
            if label != "INCONCLUSIVE":
                break
        ended.append(number)
        labels.append(label)
    chances = {label: labels.count(label) / _FUTURES for label in ("PASS", "FAIL", "MARGINAL", "INCONCLUSIVE")}
    return Outlook(to_come, float(np.mean(ended)), {label: chance for label, chance in chances.items() if chance})
