"""Makes lists to train on: a query, its documents, and a label for each document, the best first.

They come from rows of MS MARCO v1.1, or from a collection, whose BM25 candidates are the negatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from unimoe.config.training import LossConfig
from unimoe.core.errors import DataError
from unimoe.core.io import hash_parts
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection
from unimoe.training.losses.listwise import are_binary, refuse_binary


@dataclass(frozen=True)
class LabelledList:
    """One query with the texts of its documents, by descending label, and a label for each."""

    query_id: str
    query: str
    documents: tuple[str, ...]
    labels: tuple[float, ...]

    @property
    def pairs(self) -> int:
        """Number of documents."""
        return len(self.documents)


@dataclass(frozen=True)
class Lists:
    """Lists, and the number of queries left out, by reason."""

    lists: tuple[LabelledList, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def content_hash(self) -> str:
        """Content hash of ids, texts and labels, in order."""
        return hash_parts(
            part
            for one in self.lists
            for part in (one.query_id, one.query, str(one.pairs), *one.documents, *map(repr, one.labels))
        )

    @property
    def notes(self) -> list[str]:
        """One line for each reason for which queries were left out."""
        return [f"{count:,} queries left out: {reason}" for reason, count in self.dropped.items() if count]

    def split(self, held_out: int, seed: int) -> tuple[Lists, Lists]:
        """Split into the lists to train on and a seeded sample of ``held_out`` others.

        Raises:
            DataError: no list is left to train on.
        """
        if held_out >= len(self.lists):
            raise DataError(
                f"{len(self.lists)} lists, {held_out} to be held out: none is left to train on; lower lists.held_out"
            )
        order = np.random.default_rng(seed).permutation(len(self.lists)).tolist()
        kept = sorted(order[held_out:])
        chosen = sorted(order[:held_out])
        return Lists(tuple(self.lists[i] for i in kept), self.dropped), Lists(tuple(self.lists[i] for i in chosen))

    def sample(self, count: int | None) -> Lists:
        """Sample at most ``count`` lists by the hash of their query id, so that a larger sample holds the smaller."""
        if count is None or count >= len(self.lists):
            return self
        chosen = set(sorted(self.lists, key=lambda one: hash_parts(["lists", one.query_id]))[:count])
        return Lists(tuple(one for one in self.lists if one in chosen), self.dropped)


def ms_marco_lists(rows: Iterable[Mapping[str, Any]], max_docs: int | None) -> Lists:
    """Make lists from rows of MS MARCO v1.1: sort passages stably by label, cut, leave out queries without a positive.

    A row is ``{"query_id", "query", "passages": {"is_selected": [..], "passage_text": [..]}}``; the id may be absent.

    Raises:
        DataError: a row has another shape, or not one label for each passage.
    """
    kept, dropped = [], 0
    for number, row in enumerate(rows):
        try:
            query, passages = str(row["query"]), row["passages"]
            texts, labels = [*passages["passage_text"]], [float(label) for label in passages["is_selected"]]
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"row {number}: a row of MS MARCO v1.1 holds query and passages.is_selected and .passage_text"
            ) from None
        if len(texts) != len(labels):
            raise DataError(f"row {number}: {len(texts)} passages, {len(labels)} labels; give one label per passage")
        order = sorted(range(len(labels)), key=lambda place: -labels[place])[:max_docs]
        if not labels or labels[order[0]] < 1.0:
            dropped += 1
            continue
        kept.append(
            LabelledList(
                str(row.get("query_id", number)),
                query,
                tuple(texts[place] for place in order),
                tuple(labels[place] for place in order),
            )
        )
    return Lists(tuple(kept), {"no passage is selected": dropped})


def collection_lists(collection: Collection, candidates: Run, max_docs: int | None, max_positives: int | None) -> Lists:
    """Make lists from a collection: relevant documents with their grades, then candidates as negatives.

    Relevant documents are ordered by grade, then by the first stage's rank, then by id where it did not find them. The
    best candidates without a grade above 0 fill up the list in their order: a loss that respects the input order
    learns that order too. ``max_positives`` is by default half of ``max_docs``.
    """
    if max_positives is None and max_docs is not None:
        max_positives = max(1, max_docs // 2)
    kept, dropped = [], 0
    for query_id, query in collection.queries.items():
        grades = {d: g for d, g in collection.qrels.get(query_id, {}).items() if g > 0 and d in collection.corpus}
        if not grades:
            dropped += 1
            continue
        found = ranked(candidates.get(query_id, {}))
        place = {document: number for number, document in enumerate(found)}
        positives = sorted(grades, key=lambda d: (-grades[d], place.get(d, len(found)), d))[:max_positives]
        negatives = [document for document in found if document not in grades]
        chosen = [*positives, *negatives][:max_docs]
        kept.append(
            LabelledList(
                query_id,
                query,
                tuple(collection.corpus[document].full_text for document in chosen),
                tuple(float(grades.get(document, 0)) for document in chosen),
            )
        )
    return Lists(tuple(kept), {"no relevant document": dropped})


def fit_for(loss: LossConfig, lists: Lists) -> Lists:
    """Return the lists that a loss can learn from, with labels in the form that it takes.

    Lists of one document, and lists of equal labels, teach no order: they are left out and counted. Lists of equal
    labels stay where the loss learns the input order, or judges pairs alone. ``yes_no`` gets 1 for labels above 0.

    Raises:
        DataError: no list is left, or the loss needs graded labels and there are only 0 and 1.
    """
    counts: Counter[str] = Counter(lists.dropped)
    kept = []
    for one in lists.lists:
        reason = _unfit(loss, one)
        if reason is None:
            kept.append(_binary(one) if loss.name == "yes_no" else one)
        else:
            counts[reason] += 1
    if not kept:
        reasons = "; ".join(f"{count} with {reason}" for reason, count in counts.items() if count)
        raise DataError(f"no list is left to train {loss.name} on ({reasons or 'there was none'}); check the labels")
    refuse_binary(loss.name, (label for one in kept for label in one.labels))
    return Lists(tuple(kept), dict(counts))


def warnings_for(loss: LossConfig, lists: Lists) -> list[str]:
    """Return warnings about training on these lists, a line each."""
    if loss.name == "adrmse" and are_binary(label for one in lists.lists for label in one.labels):
        return ["loss adrmse is made for graded labels; of 0 and 1 it learns that the rest share one rank"]
    return []


def _unfit(loss: LossConfig, one: LabelledList) -> str | None:
    if loss.name == "yes_no":
        return None if one.pairs else "no document"
    if one.pairs < 2:
        return "fewer than two documents"
    order_is_taught = loss.name in ("listmle", "plistmle") and loss.respect_input_order
    if len(set(one.labels)) == 1 and not order_is_taught:
        return "all labels equal"
    return None


def _binary(one: LabelledList) -> LabelledList:
    return LabelledList(one.query_id, one.query, one.documents, tuple(float(label > 0) for label in one.labels))


def as_columns(lists: Sequence[LabelledList]) -> dict[str, list[Any]]:
    """Return the columns of a data set of ``datasets``, in the order that the loss takes them."""
    return {
        "query_id": [one.query_id for one in lists],
        "query": [one.query for one in lists],
        "docs": [list(one.documents) for one in lists],
        "labels": [list(one.labels) for one in lists],
    }
