"""The queries that carry the TIR: few enough for a page, the ones that matter most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import QueryCase
from unimoe.analysis.interference import Interference
from unimoe.analysis.tables.cells import visible

MOST_CHARACTERS = 280
MOST_DOCUMENTS = 5


@dataclass(frozen=True)
class QueryRow:
    """One query under two arms; scores x 100, means over seeds.

    Attributes:
        place: index into ``Queries.places``.
        share: what the query adds to the TIR of the means, in points.
        ranks: a line per relevant document, ``doc: ranks under the specialist → ranks under the joint arm``.
        best: best rank of any relevant document under either arm, to sort by; None where none was ranked.
    """

    place: int
    id: str
    text: str
    specialist: float
    joint: float
    difference: float
    share: float
    ranks: tuple[str, ...]
    best: int | None


@dataclass(frozen=True)
class Queries:
    """The rows of the drill-down, largest difference first.

    Attributes:
        places: where queries were compared, ``reranking/scifact``; with the arms where that leaves them open.
        total: queries of all these comparisons; ``rows`` holds at most ``MOST_CASES`` of them, and no ties.
        unread: why texts or ranks are missing, a line per sidecar.
    """

    places: tuple[str, ...]
    rows: tuple[QueryRow, ...]
    total: int
    unread: tuple[str, ...]

    @property
    def words(self) -> str:
        """What the reader sees, and what was left out."""
        return (
            f"The joint arm against its specialist, query by query, averaged over seeds: {len(self.rows):,} of "
            f"{self.total:,} queries, those with the largest differences. A negative difference is a query that the "
            "joint arm loses; what it adds to TIR is then positive, and over all queries these parts sum to TIR."
        )

    @property
    def data(self) -> dict[str, Any]:
        """The rows for the page's script, as arrays in the order of the columns."""
        return {
            "places": self.places,
            "rows": [
                (r.place, r.id, r.text, r.specialist, r.joint, r.difference, r.share, r.ranks, r.best)
                for r in self.rows
            ],
        }


def gather_queries(analysis: Analysis) -> Queries:
    """The cases of every measured pair and dataset."""
    measured = analysis.metrics.measured
    cases = [analysis.cases[item.pair, item.dataset] for item in measured]
    rows = [_row(place, case) for place, of_place in enumerate(cases) for case in of_place]
    return Queries(
        places=tuple(_places(measured)),
        rows=tuple(sorted(rows, key=lambda row: -abs(row.difference))),
        total=sum(item.queries for item in measured),
        unread=tuple(line for of_place in cases for line in (of_place[0].unread if of_place else ())),
    )


def _places(measured: Sequence[Interference]) -> Iterator[str]:
    keys = Counter(f"{item.pair.task}/{item.dataset}" for item in measured)
    for item in measured:
        key, pair = f"{item.pair.task}/{item.dataset}", item.pair
        yield visible(key if keys[key] == 1 else f"{key}: {pair.joint} against {pair.specialist}")


def _row(place: int, case: QueryCase) -> QueryRow:
    documents = sorted(case.relevant, key=lambda document: (-case.relevant[document], document))
    lines = [_ranks(case, document) for document in documents[:MOST_DOCUMENTS]]
    if len(documents) > MOST_DOCUMENTS:
        lines.append(f"and {len(documents) - MOST_DOCUMENTS:,} more")
    ranks = [
        rank
        for arm in (case.specialist_ranks, case.joint_ranks)
        for by_seed in arm.values()
        for rank in by_seed
        if rank
    ]
    return QueryRow(
        place=place,
        id=visible(case.query_id),
        text=_shortened(visible(case.text)),
        specialist=_points(case.specialist),
        joint=_points(case.joint),
        difference=_points(case.difference),
        share=round(100 * case.share, 3) + 0.0,
        ranks=tuple(lines),
        best=min(ranks, default=None),
    )


def _ranks(case: QueryCase, document: str) -> str:
    sides = (_by_seed(case.specialist_ranks, document), _by_seed(case.joint_ranks, document))
    return f"{_shortened(visible(document), 40)}: {' → '.join(sides)}"


def _by_seed(ranks: Mapping[str, Sequence[int | None]], document: str) -> str:
    if not ranks:
        return "?"
    return " ".join("–" if rank is None else str(rank) for rank in ranks.get(document, ())) or "–"


def _points(score: float) -> float:
    """Times 100 with two decimals, and no minus before a zero."""
    return round(100 * score, 2) + 0.0


def _shortened(text: str, limit: int = MOST_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
