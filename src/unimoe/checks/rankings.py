"""What a ranking leaves open: the order of equal scores, documents that nobody judged, ranks that contradict scores.

Rankings break ties by document id (trec_eval). A model that gives one score to many documents has as many values as
there are orders of them, and one of these is reported: ``Ties`` has the lowest and the highest. Unjudged documents
count as not relevant, and most are in the systems that the pool did not know.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

import numpy as np

from unimoe.checks import Check
from unimoe.core.grouping import gathered
from unimoe.core.trec import Grades, Run

SAID_FROM = 0.001  # .1 points between lowest and highest mean

_DECIDED = "documents with equal scores, ordered by their ids"

ByQuery = Mapping[str, float]
Scorer = Callable[[Grades, Run], Mapping[str, ByQuery]]
"""From judgments and a run, in which no two documents of a query tie, to the values by measure and query."""


@dataclass(frozen=True)
class Ties:
    """Values by measure and query, of those queries alone in which the order of equal scores may change the value."""

    lowest: Mapping[str, ByQuery] = field(default_factory=dict)
    highest: Mapping[str, ByQuery] = field(default_factory=dict)

    def means(self, measure: str, per_query: ByQuery) -> tuple[float, float]:
        """Return the lowest and the highest mean of a measure, whose values ``per_query`` has in the reported order."""
        low, high = (
            math.fsum({**per_query, **side.get(measure, {})}.values()) / max(1, len(per_query))
            for side in (self.lowest, self.highest)
        )
        return low, high


def ties_of(qrels: Grades, run: Run, score: Scorer) -> Ties:
    """Score the queries in which documents of unlike grades have one score, in their worst and their best order."""
    open_queries = [query for query, grades in qrels.items() if _is_open(grades, run.get(query, {}))]
    if not open_queries:
        return Ties()
    judged = {query: qrels[query] for query in open_queries}
    orders = ({query: _ordered(run[query], judged[query], sign) for query in open_queries} for sign in (-1, 1))
    first, second = (score(judged, order) for order in orders)
    pairs = {m: [(first[m][q], second[m][q], q) for q in open_queries] for m in first}
    return Ties(
        {m: {q: min(one, other) for one, other, q in of} for m, of in pairs.items()},
        {m: {q: max(one, other) for one, other, q in of} for m, of in pairs.items()},
    )


def tie_checks(ties: Ties, per_query: Mapping[str, ByQuery], where: str) -> list[Check]:
    """Say how far apart the lowest and highest mean of a run are, where that is .1 points or more of a measure."""
    ranges = {measure: ties.means(measure, values) for measure, values in per_query.items() if measure in ties.lowest}
    wide = {measure: ends for measure, ends in ranges.items() if ends[1] - ends[0] >= SAID_FROM}
    if not wide:
        return []
    said = ", ".join(f"{measure} from {100 * low:.2f} to {100 * high:.2f}" for measure, (low, high) in wide.items())
    queries = len(next(iter(ties.lowest.values())))
    line = f"{where}: {queries:,} queries have {_DECIDED}; other orders give {said}"
    return [Check("ties", "caveat", line, {"queries": queries, "ranges": {m: list(ends) for m, ends in wide.items()}})]


def ties_in(checks: Iterable[Check]) -> list[Check]:
    """Return what ``tie_checks`` said of one run."""
    return [check for check in checks if check.name == "ties" and "ranges" in check.data]


def ties_of_systems(
    runs: Iterable[tuple[str, Collection[float], Iterable[Check]]], measure: str, where: str
) -> Iterator[Check]:
    """Say the same of several systems in one line: ranges are means over all of a system's runs.

    A run is its system, its values of the measure, and what was found of it; one without a range has its mean alone.
    """
    ranges = gathered((system, _range(values, checks, measure)) for system, values, checks in runs)
    means = ((system, [fmean(side) for side in zip(*of_runs, strict=True)]) for system, of_runs in ranges.items())
    ends = {system: [low, high] for system, (low, high) in means if low < high}
    if ends:
        said = ", ".join(f"{system} {100 * low:.2f} to {100 * high:.2f}" for system, (low, high) in ends.items())
        line = f"{where}: some systems have {_DECIDED}; other orders give {measure} of {said}"
        yield Check("ties", "caveat", line, {"measure": measure, "systems": ends})


def _range(values: Collection[float], checks: Iterable[Check], measure: str) -> Sequence[float]:
    found = (check.data["ranges"] for check in ties_in(checks))
    mean = math.fsum(values) / max(1, len(values))
    return next((ranges[measure] for ranges in found if measure in ranges), (mean, mean))


def _is_open(grades: Mapping[str, float], scores: Mapping[str, float]) -> bool:
    """Return whether a judged document has the score of one with another grade; unjudged ones have grade 0."""
    if len(scores) < 2:
        return False
    counts = Counter(array("f", scores.values()))  # rankings compare scores as float32
    if len(counts) == len(scores):
        return False
    of_score = gathered((array("f", [scores[key]])[0], max(g, 0)) for key, g in grades.items() if key in scores)
    return any(len({*found, *[0] * (counts[value] > len(found))}) > 1 for value, found in of_score.items())


def _ordered(scores: Mapping[str, float], grades: Mapping[str, float], sign: int) -> dict[str, float]:
    """Return one query's documents with scores that fall by rank: equal ones by grade, the highest first if +1."""
    values = array("f", scores.values())
    by_score: Sequence[tuple[float, float, str]] = sorted(
        ((value, sign * max(grades.get(key, 0), 0), key) for value, key in zip(values, scores, strict=True)),
        reverse=True,
    )
    return {key: float(len(by_score) - rank) for rank, (_, _, key) in enumerate(by_score)}


USUAL_CUTOFF = 10  # of the share where a measure has none
APART = 0.02  # difference of two shares from which the comparison is shown on judged documents alone


@dataclass(frozen=True)
class Unjudged:
    """The mean share of unjudged documents among the first of each query, 0 to 1.

    Attributes:
        cutoff: how many are the first.
        negatives: whether any judgment says that a document is not relevant. Where none does, as in most of BEIR, the
            judged documents are the relevant ones, and nothing can be said on them alone.
    """

    share: float
    cutoff: int
    negatives: bool

    def check(self, where: str) -> Check:
        """Return it as a note on a run."""
        said = f"{where}: {100 * self.share:.1f} % of the first {self.cutoff} documents of a query are not judged"
        return Check("unjudged", "note", said, asdict(self))


def unjudged(checks: Iterable[Check]) -> list[Unjudged]:
    """Return what ``Unjudged.check`` made notes of, such as that of one run."""
    return [Unjudged(**check.data) for check in checks if check.name == "unjudged"]


def unjudged_of(qrels: Grades, order: Mapping[str, Sequence[str]], cutoff: int) -> Unjudged:
    """Return the unjudged documents of a run, 1 - ``Judged@k`` of ir_measures; queries without documents have none.

    ``order`` holds the documents of each judged query, best first.
    """
    firsts = [(grades, first) for query, grades in qrels.items() if (first := order[query][:cutoff])]
    shares = [sum(key not in grades for key in first) / len(first) for grades, first in firsts]
    negatives = any(grade <= 0 for grades in qrels.values() for grade in grades.values())
    return Unjudged(fmean(shares) if shares else 0.0, cutoff, negatives)


def judged_only(qrels: Grades, run: Run) -> Run:
    """Return a run without its unjudged documents (trec_eval -J)."""
    return {
        query: {key: scores[key] for key in grades if key in scores}
        for query, grades in qrels.items()
        for scores in [run.get(query, {})]
    }


CONTRADICTED = 0.9  # share of queries from which on scores that rise with ranks are refused


def check_ranks(run: Run, ranks: Mapping[str, Sequence[float]], name: str) -> tuple[Check, ...]:
    """Count the queries in which more scores rise from a rank to the next than fall.

    ``ranks`` are those of the documents in the order of a file, by query; those of absent queries count the documents.
    It is a refusal where nearly all queries are so, of those with different ranks and different scores, else a note.
    """
    ordered = contradicting = 0
    for query, scores in run.items():
        values = np.fromiter(scores.values(), np.float32, len(scores))
        apart = np.ones(len(scores) - 1, dtype=bool)
        if query in ranks:
            places = np.array(ranks[query])
            order = np.argsort(places, kind="stable")
            values, apart = values[order], places[order][1:] > places[order][:-1]
        rises = np.count_nonzero(apart & (values[1:] > values[:-1]))
        falls = np.count_nonzero(apart & (values[1:] < values[:-1]))
        ordered += bool(rises or falls)
        contradicting += bool(rises > falls)
    if not contradicting:
        return ()
    line = f"{name}: scores rise from rank to rank in {contradicting:,} of {ordered:,} queries"
    data = {"contradicting": contradicting, "queries": ordered}
    if contradicting < CONTRADICTED * ordered:
        return (Check("ranks", "note", f"{line}; scores count, not ranks", data),)
    remedy = "negate the scores, or write scores that fall with rank"
    return (Check("ranks", "refusal", f"{line}, as where distances are written as scores", data, remedy),)
