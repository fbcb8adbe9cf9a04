"""The queries that carry a TIR: what each adds to it, its text, and where its relevant documents were ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unimoe.analysis.interference import MIN_SPECIALIST, InterferenceMetrics
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.errors import DataError
from unimoe.results import EvalResult, QueryDetail, read_query_details, result_path

LIMIT = 200
"""Queries of a drill-down: what a reader can look through, and a page can hold."""

MOST_CASES = 3_000
"""Queries of all drill-downs of a report: with the longest texts some 2 MB, and a browser sorts them at once."""

_TOP = 10
_TEXT_SHOWN = 60

Details = Mapping[str, QueryDetail]
"""What is known of the queries of one arm and seed, by query id."""

Ranks = dict[str, tuple[int | None, ...]]
"""Rank of each relevant document by seed, None where it was not ranked."""


@dataclass(frozen=True)
class QueryCase:
    """One query of a pair of arms.

    Attributes:
        text: empty where no sidecar tells it.
        specialist: mean of the main metric over the seeds both arms have; ``joint`` likewise.
        difference: joint minus specialist.
        share: what the query adds to the TIR of the means: ``(specialist - joint) / (n * mean of specialist)``. Over
            all queries the shares sum to that TIR; one is negative where the joint arm is ahead.
        relevant: grade of each relevant document.
        specialist_ranks: empty where the sidecar of a seed cannot be read; ``joint_ranks`` likewise.
        unread: why texts or ranks are missing, a line for each sidecar; the same for all cases of a drill-down.
    """

    query_id: str
    text: str
    specialist: float
    joint: float
    difference: float
    share: float
    relevant: dict[str, int]
    specialist_ranks: Ranks
    joint_ranks: Ranks
    unread: tuple[str, ...]


class DetailedResults(Results):
    """Results that hold the details of their queries themselves; no sidecars lie beside them.

    Attributes:
        details: by arm and seed, for the only dataset there is.
    """

    def __init__(
        self,
        output_dir: Path,
        results: Iterable[EvalResult],
        pairs: Iterable[Pair],
        details: Mapping[tuple[str, int], Details],
    ) -> None:
        super().__init__(output_dir, results, pairs=pairs)
        self.details = dict(details)


def drill_down(results: Results, pair: Pair, dataset: str, limit: int = LIMIT) -> tuple[QueryCase, ...]:
    """The queries that carry most of a TIR, losses and wins alike, the largest difference first.

    Reads each sidecar of the pair once. One that is missing or broken is named in ``unread``, and the queries are
    shown without what it would have told.

    Args:
        results: what ``load_all_results`` returned.
        pair: the arms.
        dataset: its name.
        limit: queries at most.

    Returns:
        Queries on which the arms differ; none where TIR is not computable.
    """
    key = f"{pair.task}/{dataset}"
    theirs = results.seeds(pair.joint, key)
    seeds = tuple(seed for seed in results.seeds(pair.specialist, key) if seed in theirs)
    if not seeds:
        return ()
    by_seed = results.scores(pair.specialist, key, seeds)
    if by_seed.mean(axis=1).min() < MIN_SPECIALIST:
        return ()
    specialist, joint = by_seed.mean(axis=0), results.scores(pair.joint, key, seeds).mean(axis=0)
    differences = np.round(joint - specialist, 12)  # a tie, but for the rounding of an average
    largest_first = np.argsort(-np.abs(differences), kind="stable")[:limit]
    chosen = [int(i) for i in largest_first if differences[i] != 0.0]
    query_ids = sorted(results.measured(key, pair.specialist)[0].per_query)
    known = _known(results, pair, dataset, seeds, [query_ids[i] for i in chosen])
    whole = len(differences) * float(specialist.mean())
    return tuple(
        _case(query_ids[i], float(specialist[i]), float(joint[i]), float(differences[i]), whole, known) for i in chosen
    )


def drill_down_all(results: Results, metrics: InterferenceMetrics) -> dict[tuple[Pair, str], tuple[QueryCase, ...]]:
    """The drill-down of every TIR by pair of arms and dataset, each with its part of ``MOST_CASES``."""
    measured = metrics.measured
    limit = MOST_CASES // max(1, len(measured))
    return {(item.pair, item.dataset): drill_down(results, item.pair, item.dataset, limit) for item in measured}


def drilldown_table(cases: Sequence[QueryCase], heading: str, limit: int = _TOP) -> Table:
    """The first queries of a drill-down for a terminal or a page.

    Args:
        cases: what ``drill_down`` returned.
        heading: which arms and dataset.
        limit: rows at most.
    """
    rows = tuple(_row(case) for case in cases[:limit])
    notes = (
        "Share: what the query adds to TIR, in points; the shares of all queries sum to the TIR of the means. "
        "First relevant: rank of the first relevant document under the specialist and the joint arm, seed by seed; "
        f"{ABSENT} where none was ranked, ? where that is not known.",
        *_unread_notes(cases),
    )
    return Table(
        name="drilldown",
        caption=f"The queries that carry the TIR: the {len(rows)} with the largest differences, scores × 100",
        columns=("Query", "Specialist", "Joint", "Difference", "Share", "First relevant"),
        groups=(RowGroup(heading, rows),) if rows else (),
        notes=notes,
    )


@dataclass(frozen=True)
class _Known:
    """What the sidecars of a pair tell; ``by_arm`` holds None for a seed whose sidecar cannot be read."""

    by_arm: tuple[tuple[Details | None, ...], ...]
    unread: tuple[str, ...]


def _known(results: Results, pair: Pair, dataset: str, seeds: Sequence[int], query_ids: Sequence[str]) -> _Known:
    by_arm, unread = [], []
    for arm in (pair.specialist, pair.joint):
        of_arm: list[Details | None] = []
        for seed in seeds:
            try:
                of_arm.append(_details(results, pair, dataset, arm, seed, query_ids))
            except DataError as error:
                of_arm.append(None)
                unread.append(str(error))
        by_arm.append(tuple(of_arm))
    return _Known(tuple(by_arm), tuple(unread))


def _details(
    results: Results, pair: Pair, dataset: str, arm: str, seed: int, query_ids: Sequence[str]
) -> dict[str, QueryDetail]:
    if isinstance(results, DetailedResults):
        return {query_id: results.details[arm, seed][query_id] for query_id in query_ids}
    return read_query_details(result_path(results.output_dir, arm, seed, pair.task, dataset), query_ids)


def _case(query_id: str, specialist: float, joint: float, difference: float, whole: float, known: _Known) -> QueryCase:
    read = next((details for of_arm in known.by_arm for details in of_arm if details is not None), None)
    relevant = dict(read[query_id].relevant) if read else {}
    specialist_ranks, joint_ranks = (_ranks(of_arm, query_id, relevant) for of_arm in known.by_arm)
    return QueryCase(
        query_id=query_id,
        text=read[query_id].text if read else "",
        specialist=specialist,
        joint=joint,
        difference=difference,
        share=-difference / whole,
        relevant=relevant,
        specialist_ranks=specialist_ranks,
        joint_ranks=joint_ranks,
        unread=known.unread,
    )


def _ranks(of_arm: Sequence[Details | None], query_id: str, relevant: Iterable[str]) -> Ranks:
    """Empty where a seed is unknown: None stands for a document that was not ranked, and must not mean both."""
    by_seed = [details[query_id].ranks for details in of_arm if details is not None]
    if len(by_seed) < len(of_arm):
        return {}
    return {document_id: tuple(ranks.get(document_id) for ranks in by_seed) for document_id in relevant}


def _row(case: QueryCase) -> tuple[Cell, ...]:
    text = " ".join(case.text.split())
    short = text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 3].rstrip()}..."
    numbers = [100 * value for value in (case.specialist, case.joint, case.difference, case.share)]
    return (
        Cell(f"{case.query_id}: {short}" if short else case.query_id),
        *(Cell(f"{value:.2f}", value=value) for value in numbers[:2]),
        *(Cell(f"{value:+.2f}", value=value) for value in numbers[2:]),
        Cell(" → ".join(_first_ranks(ranks) or "?" for ranks in (case.specialist_ranks, case.joint_ranks))),
    )


def _first_ranks(ranks: Ranks) -> str:
    """``1 3 –``: the rank of the first relevant document by seed."""
    found = ([rank for rank in of_seed if rank is not None] for of_seed in zip(*ranks.values(), strict=True))
    return " ".join(str(min(of_seed)) if of_seed else ABSENT for of_seed in found)


def _unread_notes(cases: Sequence[QueryCase]) -> Iterator[str]:
    unread = cases[0].unread if cases else ()
    if unread:
        more = f", and {len(unread) - 1} more like it" if len(unread) > 1 else ""
        yield f"Texts or ranks are missing: {unread[0]}{more}."
