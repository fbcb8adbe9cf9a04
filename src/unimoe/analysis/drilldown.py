"""The queries that contribute most to a difference: their share in it, text, and ranks of relevant documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.core.errors import DataError
from unimoe.results.folder import Details, Results, Seed

LIMIT = 200  # queries of a drill-down: what a reader can look through, and a page can hold
MOST_CASES = 3_000
"""Queries of all drill-downs of a report: with the longest texts some 2 MB, and a browser sorts them at once."""

_TOP = 10
_TEXT_SHOWN = 60

Ranks = dict[str, tuple[int | None, ...]]  # of each relevant document by seed, None where it was not ranked


@dataclass(frozen=True)
class QueryCase:
    """One query under the two arms of a gate.

    ``share`` is its part of the gate's value on a dataset: ``(specialist - joint) / (n * mean of specialist)`` of TIR,
    ``(system - baseline) / n`` of a difference. Over all queries the parts sum to the value.
    """

    query_id: str
    text: str  # empty where no sidecar holds it
    first: float  # mean over seeds of the specialist, or of the system
    second: float  # the same of the joint arm, or of the baseline
    difference: float  # joint minus specialist, or system minus baseline
    share: float
    relevant: dict[str, int]  # grade of each relevant document
    first_ranks: Ranks  # under the first arm; empty where the sidecar of a seed cannot be read
    second_ranks: Ranks
    unread: tuple[str, ...]  # why texts or ranks are missing, a line for each sidecar; the same for all cases


def drill_down(results: Results, gate: Gate, found: Finding, limit: int = LIMIT) -> tuple[QueryCase, ...]:
    """Return the queries of a finding's one dataset with the largest differences, losses and wins alike, largest first.

    The sidecars are read once for each arm and seed; one that is missing or broken is named in ``unread``.
    """
    key = f"{gate.task}/{found.datasets[0]}"
    first, second = (
        results.scores(arm, key, seeds, gate.metric).mean(axis=0)
        for arm, seeds in zip(gate.arms, found.seeds, strict=True)
    )
    is_tir = isinstance(gate, InterferenceGate)
    differences = np.round(second - first if is_tir else first - second, 12)  # a tie, except for an average's rounding
    whole = -len(differences) * float(first.mean()) if is_tir else float(len(differences))
    largest_first = np.argsort(-np.abs(differences), kind="stable")[:limit]
    chosen = [int(i) for i in largest_first if differences[i] != 0.0 and whole]
    query_ids = sorted(results.measured(key, gate.arms[0])[0].per_query)
    asked = [query_ids[i] for i in chosen]
    by_arm = [
        [_details(results, arm, seed, key, asked) for seed in seeds]
        for arm, seeds in zip(gate.arms, found.seeds, strict=True)
    ]
    unread = tuple(str(error) for error in chain(*by_arm) if isinstance(error, DataError))
    known = next((details for details in chain(*by_arm) if not isinstance(details, DataError)), {})
    cases = []
    for i in chosen:
        detail = known.get(query_ids[i])
        relevant = dict(detail.relevant) if detail else {}
        first_ranks, second_ranks = (_ranks(of_arm, query_ids[i], relevant) for of_arm in by_arm)
        cases.append(
            QueryCase(
                query_id=query_ids[i],
                text=detail.text if detail else "",
                first=float(first[i]),
                second=float(second[i]),
                difference=float(differences[i]),
                share=float(differences[i]) / whole,
                relevant=relevant,
                first_ranks=first_ranks,
                second_ranks=second_ranks,
                unread=unread,
            )
        )
    return tuple(cases)


def drill_down_all(results: Results, judgments: Sequence[Judgment]) -> dict[tuple[str, str], tuple[QueryCase, ...]]:
    """Return the drill-down of every judgment by gate and dataset, each with its part of ``MOST_CASES``."""
    rows = [(item, found) for item in judgments for found in item.rows]
    limit = MOST_CASES // max(1, len(rows))
    return {(item.name, found.datasets[0]): drill_down(results, item.gate, found, limit) for item, found in rows}


def drilldown_table(cases: Sequence[QueryCase], gate: Gate, dataset: str) -> Table:
    """Return the first queries of what ``drill_down`` returned for a gate on a dataset as a table."""
    rows = tuple(_row(case) for case in cases[:_TOP])
    first, second = gate.arms
    notes = [
        "Share: the query's part of the value, in points; the parts of all queries sum to it. "
        f"First relevant: rank of the first relevant document under {first} and under {second}, seed by seed; "
        f"{ABSENT} where none was ranked, ? where that is not known."
    ]
    if unread := cases[0].unread if cases else ():
        more = f", and {len(unread) - 1} more like it" if len(unread) > 1 else ""
        notes.append(f"Texts or ranks are missing: {unread[0]}{more}.")
    return Table(
        name="drilldown",
        caption=f"The {len(rows)} queries with the largest differences, scores × 100",
        columns=("Query", first, second, "Difference", "Share", "First relevant"),
        groups=(RowGroup(f"{' against '.join(gate.sides)}, {gate.metric} on {dataset}", rows),) if rows else (),
        notes=tuple(notes),
    )


def _details(results: Results, arm: str, seed: Seed, key: str, query_ids: Sequence[str]) -> Details | DataError:
    """Return what is known of queries under one arm and seed, or why its sidecar cannot be read."""
    try:
        return results.query_details(arm, seed, key, query_ids)
    except DataError as error:
        return error


def _ranks(of_arm: Sequence[Details | DataError], query_id: str, relevant: Iterable[str]) -> Ranks:
    """Return ranks by seed; empty where a seed is unknown, because None stands for a document that was not ranked."""
    by_seed = [details[query_id].ranks for details in of_arm if not isinstance(details, DataError)]
    if len(by_seed) < len(of_arm):
        return {}
    return {document_id: tuple(ranks.get(document_id) for ranks in by_seed) for document_id in relevant}


def _row(case: QueryCase) -> tuple[Cell, ...]:
    text = " ".join(case.text.split())
    short = text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 3].rstrip()}..."
    numbers = [100 * value for value in (case.first, case.second, case.difference, case.share)]
    return (
        Cell(f"{case.query_id}: {short}" if short else case.query_id),
        *(Cell.number(value, ".2f") for value in numbers[:2]),
        *(Cell.signed(value) for value in numbers[2:]),
        Cell(" → ".join(_first_ranks(ranks) or "?" for ranks in (case.first_ranks, case.second_ranks))),
    )


def _first_ranks(ranks: Ranks) -> str:
    """Return the rank of the first relevant document by seed, as ``1 3 –``."""
    found = ([rank for rank in of_seed if rank is not None] for of_seed in zip(*ranks.values(), strict=True))
    return " ".join(str(min(of_seed)) if of_seed else ABSENT for of_seed in found)
