"""Everything the report says, gathered once and said twice: in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.output import origin
from unimoe.analysis.report.cards import Card, cards
from unimoe.analysis.report.provenance import Fact, missing_parts, provenance
from unimoe.analysis.report.queries import Queries, gather_queries
from unimoe.analysis.tables import Table

READING = (
    "TIR, the task interference ratio, is the share of the specialist's score that the joint model loses: "
    "(specialist - joint) / specialist. PASS means that interference is confirmed, which speaks for separate experts "
    "and against the joint model; a negative TIR is synergy.",
    "The rule looks at the mean over seeds alone: 2 % or more is PASS, below 1 % FAIL, between them MARGINAL. The "
    "label with confidence also asks whether other seeds and other queries would agree, and is INCONCLUSIVE unless "
    "one region holds .90. Trust that one.",
)


@dataclass(frozen=True)
class DrawnFigure:
    """A figure on disk and on the page.

    Attributes:
        file: the PNG's name below ``figures/``.
        svg: an ``svg`` element.
        inches: its width in print, so that text has one size on the page as well.
    """

    file: str
    caption: str
    svg: str
    inches: float


@dataclass(frozen=True)
class Contents:
    """What the report says, figures apart.

    Attributes:
        gates: which file registered the gates that were judged, or that none did.
        missing: what the analysis would have used and did not find.
    """

    experiment: str
    caveats: tuple[str, ...]
    gates: str
    cards: tuple[Card, ...]
    tables: tuple[Table, ...]
    queries: Queries
    missing: tuple[str, ...]
    provenance: tuple[Fact, ...]


def gather(analysis: Analysis, tables: Sequence[Table]) -> Contents:
    """Ask every part of the analysis for what it has to say.

    Args:
        analysis: of the results.
        tables: those of the report, in its order.
    """
    results, registration, metrics = analysis.results, analysis.registration, analysis.metrics
    queries = gather_queries(analysis)
    settings = f"{analysis.iterations:,} bootstrap resamples and permutations, random seed {analysis.seed}"
    return Contents(
        experiment=results.everything[0].identity.experiment,
        caveats=results.caveats,
        gates=f"{origin(registration)}.",
        cards=cards(registration, analysis.outcomes, metrics.missing),
        tables=tuple(tables),
        queries=queries,
        missing=(*missing_parts(results, metrics), *queries.unread),
        provenance=(*provenance(results), ("Analysis", settings)),
    )
