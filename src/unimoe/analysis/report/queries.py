"""The queries on which two arms differ most: few enough for a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import QueryCase
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.tables.gates import by_kind, column_heads
from unimoe.core.limits import visible

MOST_CHARACTERS = 280
MOST_DOCUMENTS = 5


class QueryRow(NamedTuple):
    """One query under two arms, in the order of the page's columns; scores x 100, means over seeds."""

    place: int  # index into ``Queries.places``
    id: str
    text: str
    first: float
    second: float
    difference: float
    share: float  # what the query adds to the gate's value on its dataset, in points
    ranks: tuple[str, ...]  # of each relevant document, ``doc: ranks under the first arm → ranks under the second``
    best: int | None  # rank of any relevant document under either arm, to sort by; None where none was ranked


@dataclass(frozen=True)
class Queries:
    """The rows of the drill-down, largest difference first."""

    roles: tuple[str, str]  # of the first and the second arm, as headings
    value: str  # what the shares add up to
    words: str  # what the reader sees, and what was left out
    places: tuple[str, ...]  # ``reranking/scifact``, with the arms or the gate where that is no name
    rows: tuple[QueryRow, ...]
    unread: tuple[str, ...]  # why texts or ranks are missing, a line for each sidecar


def gather_queries(analysis: Analysis) -> Queries:
    """Return the cases of every judgment and dataset."""
    shown = [(item, found) for item in analysis.judgments for found in item.rows]
    cases = [analysis.cases[item.name, found.datasets[0]] for item, found in shown]
    rows = [_row(place, case) for place, of_place in enumerate(cases) for case in of_place]
    total = sum(found.queries for _, found in shown)
    gains = "A positive difference is a query that the system gains."
    loses = "A negative difference is a query that the joint arm loses; what it adds to TIR is then positive."
    compared, sign, value = by_kind(
        analysis.judgments,
        ("The joint arm against its specialist", loses, "TIR"),
        ("The system against the baseline", gains, "the difference"),
        ("The two arms of each gate", f"{gains} {loses}", "the value of the gate"),
    )
    return Queries(
        roles=column_heads(analysis.judgments)[:2],
        value=value,
        words=(
            f"{compared}, query by query, each averaged over its seeds: {len(rows):,} of {total:,} queries, those with "
            f"the largest differences. {sign} Over all queries of a dataset these parts sum to {value}."
        ),
        places=tuple(_places(shown)),
        rows=tuple(sorted(rows, key=lambda row: -abs(row.difference))),
        unread=tuple(dict.fromkeys(line for of_place in cases for case in of_place[:1] for line in case.unread)),
    )


def _places(shown: Sequence[tuple[Judgment, Finding]]) -> Iterator[str]:
    """Yield where queries were compared, with the arms, and the gate, where the shorter form is no name."""
    forms = []
    for item, found in shown:
        key, arms = f"{item.gate.task}/{found.datasets[0]}", " against ".join(item.gate.sides)
        forms.append((key, f"{key}: {arms}", f"{key}: {arms} ({item.name})"))
    counts = [Counter(of_length) for of_length in zip(*forms, strict=True)]
    for of_place in forms:
        alone = (form for form, seen in zip(of_place, counts, strict=True) if seen[form] == 1)
        yield visible(next(alone, of_place[-1]))


def _row(place: int, case: QueryCase) -> QueryRow:
    best = {document: _best_rank(case, document) for document in case.relevant}
    # By the best rank, then by grade: what nobody retrieved comes last.
    documents = sorted(best, key=lambda document: (best[document], -case.relevant[document], document))
    first = min(best.values(), default=math.inf)
    lines = [_ranks(case, document) for document in documents[:MOST_DOCUMENTS]]
    if len(documents) > MOST_DOCUMENTS:
        lines.append(f"and {len(documents) - MOST_DOCUMENTS:,} more")
    return QueryRow(
        place=place,
        id=visible(case.query_id),
        text=_shortened(visible(case.text)),
        first=_points(case.first),
        second=_points(case.second),
        difference=_points(case.difference),
        share=round(100 * case.share, 3) + 0.0,
        ranks=tuple(lines),
        best=int(first) if first < math.inf else None,
    )


def _best_rank(case: QueryCase, document: str) -> float:
    """Return the best rank under either arm; infinity for a document that nobody retrieved."""
    held = (ranks.get(document, ()) for ranks in (case.first_ranks, case.second_ranks))
    return min((rank for by_seed in held for rank in by_seed if rank), default=math.inf)


def _ranks(case: QueryCase, document: str) -> str:
    sides = (_by_seed(case.first_ranks, document), _by_seed(case.second_ranks, document))
    return f"{_shortened(visible(document), 40)}: {' → '.join(sides)}"


def _by_seed(ranks: Mapping[str, Sequence[int | None]], document: str) -> str:
    if not ranks:
        return "?"
    return " ".join("–" if rank is None else str(rank) for rank in ranks.get(document, ())) or "–"


def _points(score: float) -> float:
    """Return a score times 100 with two decimals, and no minus before a zero."""
    return round(100 * score, 2) + 0.0


def _shortened(text: str, limit: int = MOST_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
