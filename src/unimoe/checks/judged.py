"""Documents that nobody judged: they count as not relevant, and most in the systems that the pool did not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from unimoe.checks import Check
from unimoe.core.trec import Grades, Run

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
