"""The queries that contribute most to a difference: their share in it, text, and ranks of relevant documents."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from unimoe.analysis.comparisons import Question
from unimoe.analysis.formats import metric_name
from unimoe.analysis.gates.definitions import DifferenceGate, Gate, InterferenceGate
from unimoe.analysis.gates.findings import Finding, evaluate_gate
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.gates.wording import by_kind, column_heads
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.core.errors import DataError
from unimoe.core.limits import visible
from unimoe.results.folder import Details, Results

LIMIT = 200  # queries of a drill-down: what a reader can look through, and a page can hold
MOST_CASES = 3_000
"""Queries of all drill-downs of a report: with the longest texts some 2 MB, and a browser sorts them at once."""
MOST_CHARACTERS = 280
MOST_DOCUMENTS = 5

TOP = 10  # queries of a table
_TEXT_SHOWN = 60

Ranks: TypeAlias = Mapping[str, Sequence[int | None]]  # of each relevant document by seed, None where not ranked


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
    relevant: Mapping[str, int | float]  # grade of each relevant document
    first_ranks: Ranks  # under the first arm; empty where the sidecar of a seed cannot be read
    second_ranks: Ranks
    unread: tuple[str, ...]  # why texts or ranks are missing, a line for each sidecar; the same for all cases


class Drilled(NamedTuple):
    """Two arms on one dataset, to show its queries: those of a gate, or two systems as one without a margin."""

    name: str  # of the gate; else of the two systems
    gate: Gate
    found: Finding


class QueryRow(NamedTuple):
    """One query under two arms, in the order of the page's columns; scores x 100, means over seeds."""

    place: int  # index into the ``places`` of ``gather_queries``
    id: str
    text: str
    first: float
    second: float
    difference: float
    share: float  # what the query adds to the gate's value on its dataset, in points
    ranks: tuple[str, ...]  # of each relevant document, ``doc: ranks under the first arm → ranks under the second``
    best: int | None  # rank of any relevant document under either arm, to sort by; None where none was ranked


def drill_down(results: Results, gate: Gate, found: Finding, limit: int = LIMIT) -> tuple[QueryCase, ...]:
    """Return the queries of a finding's one dataset with the largest differences, losses and wins alike, largest first.

    The sidecars are read once for each arm and seed; one that is missing or broken is named in ``unread``.
    """
    key, arms = f"{gate.task}/{found.datasets[0]}", tuple(zip(gate.arms, found.seeds, strict=True))
    first, second = (results.scores(arm, key, seeds, gate.metric).mean(axis=0) for arm, seeds in arms)
    is_tir = isinstance(gate, InterferenceGate)
    differences = np.round(second - first if is_tir else first - second, 12)  # a tie, except for an average's rounding
    whole = -len(differences) * float(first.mean()) if is_tir else float(len(differences))
    largest = np.argsort(-np.abs(differences), kind="stable")[:limit]
    query_ids = sorted(results.measured(key, gate.arms[0])[0].per_query)
    chosen = {query_ids[i]: int(i) for i in largest if differences[i] != 0.0 and whole}
    read: tuple[list[Details], list[Details]] = ([], [])  # what is known of queries, by arm and seed
    unread = []
    for of_arm, (arm, seeds) in zip(read, arms, strict=True):
        for seed in seeds:
            try:
                of_arm.append(results.query_details(arm, seed, key, list(chosen)))
            except DataError as error:
                unread.append(str(error))
    known = next(filter(None, chain(*read)), {})

    def ranks(arm: int, query: str) -> Ranks:
        # Empty where a seed is unknown, because None stands for a document that was not ranked.
        by_seed = [details[query].ranks for details in read[arm]] if len(read[arm]) == len(arms[arm][1]) else []
        return {doc: tuple(of.get(doc) for of in by_seed) for doc in known[query].relevant} if by_seed else {}

    return tuple(
        QueryCase(
            query_id=query,
            text=known[query].text if known else "",
            first=float(first[place]),
            second=float(second[place]),
            difference=float(differences[place]),
            share=float(differences[place]) / whole,
            relevant=dict(known[query].relevant) if known else {},
            first_ranks=ranks(0, query),
            second_ranks=ranks(1, query),
            unread=tuple(unread),
        )
        for query, place in chosen.items()
    )


def drilled_of(results: Results, judgments: Sequence[Judgment], asked: Sequence[Question]) -> tuple[Drilled, ...]:
    """Return the datasets of some judgments, then the systems that questions compare there and no judgment does."""
    drilled = [Drilled(item.name, item.gate, found) for item in judgments for found in item.rows]
    judged = {(frozenset(one.gate.arms), f"{one.gate.task}/{one.found.datasets[0]}") for one in drilled}
    for question in asked:
        task, _, dataset = question.key.partition("/")
        if (frozenset((question.system, question.baseline)), question.key) not in judged:
            # Not validated: results may hold a metric that a module registered when they were made.
            gate = DifferenceGate.model_construct(
                kind="superiority",
                task=task,
                datasets=[dataset],
                metric=results.measured(question.key)[0].main_metric,
                system=question.system,
                baseline=question.baseline,
                margin=0.0,
            )
            drilled.append(Drilled(gate.against, gate, evaluate_gate(gate, collect(results, gate))))
    return tuple(drilled)


def drill_down_all(results: Results, drilled: Sequence[Drilled]) -> dict[tuple[str, str], tuple[QueryCase, ...]]:
    """Return every drill-down by name and dataset, each with its part of ``MOST_CASES``."""
    limit = MOST_CASES // max(1, len(drilled))
    collects = gc.isenabled()
    gc.disable()  # a sidecar makes so many objects that the collector would walk through all results again
    try:
        return {(of.name, of.found.datasets[0]): drill_down(results, of.gate, of.found, limit) for of in drilled}
    finally:
        if collects:
            gc.enable()


def drilldown_table(cases: Sequence[QueryCase], gate: Gate, dataset: str, top: int = TOP) -> Table:
    """Return the first queries of what ``drill_down`` returned for a gate on a dataset as a table."""
    rows = []
    for case in cases[:top]:
        text = " ".join(case.text.split())
        short = text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 3].rstrip()}..."
        best = []  # the rank of the first relevant document by seed, as ``1 3 –``, under each arm
        for ranks in (case.first_ranks, case.second_ranks):
            by_seed = (filter(None, of_seed) for of_seed in zip(*ranks.values(), strict=True))
            best.append(" ".join(str(min(of_seed, default=ABSENT)) for of_seed in by_seed) or "?")
        rows.append(
            (
                Cell(f"{case.query_id}: {short}" if short else case.query_id),
                *(Cell.number(100 * value, ".2f") for value in (case.first, case.second)),
                *(Cell.signed(100 * value) for value in (case.difference, case.share)),
                Cell(" → ".join(best)),
            )
        )
    first, second = gate.arms
    notes = [
        "Share: the query's part of the value, in points; the parts of all queries sum to it. "
        f"First relevant: rank of the first relevant document under {first} and under {second}, seed by seed; "
        f"{ABSENT} where none was ranked, ? where that is not known."
    ]
    if unread := cases[0].unread if cases else ():
        more = f", and {len(unread) - 1} more like it" if len(unread) > 1 else ""
        notes.append(f"Texts or ranks are missing: {unread[0]}{more}.")
    heading = f"{gate.against}, {metric_name(gate.metric)} on {dataset}"
    return Table(
        name="drilldown",
        caption=f"The {len(rows)} queries with the largest differences, scores × 100",
        columns=("Query", first, second, "Difference", "Share", "First relevant"),
        groups=(RowGroup(heading, tuple(rows)),) if rows else (),
        notes=tuple(notes),
    )


def gather_queries(drilled: Sequence[Drilled], cases: Mapping[tuple[str, str], Sequence[QueryCase]]) -> dict[str, Any]:
    """Return what a page shows of all drill-downs, rows with the largest difference first."""
    held = [cases[of.name, of.found.datasets[0]] for of in drilled]
    rows = [_row(place, case) for place, of_place in enumerate(held) for case in of_place]
    gains = "A positive difference is a query that the system gains."
    loses = "A negative difference is a query that the joint arm loses; what it adds to TIR is then positive."
    compared, sign, value = by_kind(
        drilled,
        ("The joint arm against its specialist", loses, "TIR"),
        ("The system against the baseline", gains, "the difference"),
        ("The two arms of each gate", f"{gains} {loses}", "the value of the gate"),
    )
    total = sum(of.found.queries for of in drilled)
    keys = [f"{of.gate.task}/{of.found.datasets[0]}" for of in drilled]
    names = (of.name if of.name == of.gate.against else f"{of.gate.against} ({of.name})" for of in drilled)
    places = (key if keys.count(key) == 1 else f"{key}: {name}" for key, name in zip(keys, names, strict=True))
    return {
        "roles": column_heads(drilled)[:2],
        "value": value,  # what the shares add up to
        "words": (
            f"{compared}, query by query, each averaged over its seeds: {len(rows):,} of {total:,} queries, those with "
            f"the largest differences. {sign} Over all queries of a dataset these parts sum to {value}."
        ),
        "places": tuple(map(visible, places)),
        "rows": sorted(rows, key=lambda row: -abs(row.difference)),
        # Why texts or ranks are missing, a line for each sidecar.
        "unread": tuple(dict.fromkeys(line for of_place in held for case in of_place[:1] for line in case.unread)),
    }


def _row(place: int, case: QueryCase) -> QueryRow:
    def shortened(text: str, limit: int) -> str:
        text = visible(text)
        return text if len(text) <= limit else f"{text[: limit - 1]}…"

    sides = (case.first_ranks, case.second_ranks)
    found = {doc: [rank for ranks in sides for rank in ranks.get(doc, ()) if rank] for doc in case.relevant}
    best = {document: min(ranks, default=math.inf) for document, ranks in found.items()}
    # By the best rank, then by grade: what nobody retrieved comes last.
    documents = sorted(best, key=lambda document: (best[document], -case.relevant[document], document))
    lines = []
    for document in documents[:MOST_DOCUMENTS]:
        by_seed = [" ".join(ABSENT if r is None else str(r) for r in ranks.get(document, ())) for ranks in sides]
        texts = [text or ABSENT if ranks else "?" for text, ranks in zip(by_seed, sides, strict=True)]
        lines.append(f"{shortened(document, 40)}: {' → '.join(texts)}")
    if len(documents) > MOST_DOCUMENTS:
        lines.append(f"and {len(documents) - MOST_DOCUMENTS:,} more")
    scores = (case.first, case.second, case.difference)
    first, second, difference = (round(100 * score, 2) + 0.0 for score in scores)  # no minus before a zero
    rank = min(best.values(), default=math.inf)
    return QueryRow(
        place=place,
        id=visible(case.query_id),
        text=shortened(case.text, MOST_CHARACTERS),
        first=first,
        second=second,
        difference=difference,
        share=round(100 * case.share, 3) + 0.0,
        ranks=tuple(lines),
        best=int(rank) if rank < math.inf else None,
    )
