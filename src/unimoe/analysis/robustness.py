"""Which findings rest on what a ranking leaves open: the order of equal scores, and documents that nobody judged.

Both are about single datasets and their main metric; ``unimoe.checks.rankings`` says what
is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from unimoe.analysis.comparisons import ALPHA, Comparison, Question, compared
from unimoe.analysis.formats import metric_name, p_text
from unimoe.checks import Check
from unimoe.checks.rankings import APART, unjudged
from unimoe.results import Otherwise
from unimoe.results.folder import Results


def with_checks(results: Results, comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    """Yield comparisons with what other orders of equal scores, and judged documents alone, say of them."""
    for c in comparisons:
        if c.main and not c.parts and results.labelled(c.key) is None:
            yield replace(c, checks=(*_of_ties(results, c), *_of_unjudged(results, c)))
        else:
            yield c


def _of_ties(results: Results, c: Comparison) -> Iterator[Check]:
    """Yield a caveat where the best order of one system's ties and the worst of the other's give another finding."""
    low = _again(results, c, {c.system: "lowest", c.baseline: "highest"})
    high = _again(results, c, {c.system: "highest", c.baseline: "lowest"})
    if low is None or high is None or _finding(low, c) == _finding(high, c):
        return
    ends = f"from {_difference(low)} to {_difference(high)}"
    line = f"{_where(c)}: the finding depends on the order of equal scores, which may make the difference {ends}"
    yield Check("ties", "caveat", line, _pair(c) | {"low": low.delta, "high": high.delta})


def _of_unjudged(results: Results, c: Comparison) -> Iterator[Check]:
    """Yield the difference on judged documents alone, where one system's documents are less judged than the other's."""
    arms = (c.system, c.baseline)
    held = [[one for run in results.measured(c.key, arm) for one in unjudged(run.checks)] for arm in arms]
    shares = [fmean(one.share for one in of_arm) for of_arm in held if of_arm]
    if len(shares) < 2 or abs(shares[0] - shares[1]) < APART - 1e-9:
        return
    said = " and ".join(f"{100 * share:.1f} %" for share in shares)
    line = f"{_where(c)}: {said} of the first {held[0][0].cutoff} documents are not judged"
    data = _pair(c) | {"shares": shares}
    if not held[0][0].negatives:
        reason = "the judgments name relevant documents alone, so that the judged ones say nothing of it"
        yield Check("unjudged", "note", f"{line}; {reason}", data | {"negatives": False})
        return
    alone = _again(results, c, {c.system: "judged", c.baseline: "judged"})
    if alone is None:
        yield Check("unjudged", "note", f"{line}; compare the run files to see the judged documents alone", data)
        return
    changes = _finding(alone, c) != _finding(c, c)
    line += (
        f"; on judged documents alone the difference is {_difference(alone)} in place of {_difference(c)}: "
        f"the finding {'changes' if changes else 'stays'}"
    )
    data |= {"judged_only": alone.delta, "interval": alone.interval, "p": alone.p, "finding_changes": changes}
    yield Check("unjudged", "caveat" if changes else "note", line, data)


def _again(results: Results, c: Comparison, variants: Mapping[str, Otherwise]) -> Comparison | None:
    """Return a comparison on other scores of its systems; None where no run has any."""
    other = results.otherwise(c.key, variants)
    return None if other is None else compared(other, Question(c.key, c.system, c.baseline))[0]


def _finding(found: Comparison, c: Comparison) -> int:
    """Return 1 or -1 for a significant difference, by the correction that ``c`` had, else 0."""
    corrected = found.p and min(1.0, found.p * ((c.p_corrected or 0.0) / c.p if c.p else 1.0))
    if found is c:
        corrected = c.p_corrected
    return 0 if corrected is None or corrected >= ALPHA else (1 if found.delta > 0.0 else -1)


def _difference(found: Comparison) -> str:
    ends = f" [{100 * found.interval[0]:+.2f}, {100 * found.interval[1]:+.2f}]" if found.interval else ""
    p = f", p {p_text(found.p)}" if found.p is not None else ""
    return f"{100 * found.delta:+.2f} points{ends}{p}"


def _where(c: Comparison) -> str:
    return f"{c.name} on {c.key.partition('/')[2]}, {metric_name(c.metric)}"


def _pair(c: Comparison) -> dict[str, object]:
    return {"dataset": c.key, "metric": c.metric, "system": c.system, "baseline": c.baseline}
