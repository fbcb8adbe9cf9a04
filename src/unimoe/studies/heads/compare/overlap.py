"""Whether a head has learnt the task or the documents: test queries by whether training knew what they look for.

A head that pulls the relevant documents of the training queries to where queries lie gains on every test query that
looks for one of them, and may lose on all others. A mean over both says nothing of new documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.loading import Results
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import marked, mean_cell
from unimoe.analysis.tables.differences import NO_DIFFERENCE, TESTED, Arms, differences, pair_up
from unimoe.data.catalog import result_name
from unimoe.studies.common.splits import Splits
from unimoe.studies.heads.compare.arms import ARMS, Comparison

BASELINE = "zero_shot"


def known_queries(splits: Splits) -> list[str]:
    """Test queries with a relevant document that is relevant to a training query too, sorted."""
    known = splits.train.relevant_documents()
    return sorted(
        query_id
        for query_id, grades in splits.test.qrels.items()
        if any(grade > 0 and document_id in known for document_id, grade in grades.items())
    )


def overlap_table(results: Results, comparison: Comparison, splits: Splits, names: Sequence[str]) -> Table:
    """Scores of every method on test queries with and without a document that training knew.

    Args:
        results: those of the comparison's folder.
        comparison: what was compared.
        splits: the collections.
        names: the methods.
    """
    base = comparison.base
    dataset = result_name(base.task)
    key = f"reranking/{dataset}"
    scores = {name: results.scores(name, key, results.seeds(name, key) or [None]) for name in names}
    known = np.isin(sorted(splits.test.qrels), known_queries(splits))
    parts = {part: places for part, places in {"known": known, "new": ~known}.items() if places.any()}
    found = differences(
        {
            (name, part): Arms(own[:, places], scores[BASELINE][:, places], pair_up(results, key, name, BASELINE))
            for part, places in parts.items()
            for name, own in scores.items()
            if BASELINE in scores and name != BASELINE
        }
    )
    ordered = [name for name in ARMS if name in names]
    means = {part: _means(scores, ordered, places) for part, places in parts.items()}

    def cells(name: str, part: str) -> tuple[Cell, ...]:
        if part not in parts:
            return Cell(ABSENT), *NO_DIFFERENCE
        return means[part][name], *(found[name, part].cells if (name, part) in found else NO_DIFFERENCE)

    return Table(
        name="documents",
        caption=f"ndcg@{base.ndcg_k} on {dataset} by whether training knew a document that the test query looks for.",
        columns=("method", "known", "vs zero-shot", "interval", "p", "new", "vs zero-shot ", "interval ", "p "),
        groups=(RowGroup("", tuple((Cell(n), *cells(n, "known"), *cells(n, "new")) for n in ordered)),),
        notes=(
            f"known: the {known.sum():,} test queries with a relevant document that is relevant to a training query "
            f"too; new: the other {(~known).sum():,}. Scores x 100, mean over seeds ± SD.",
            f"{TESTED}Zero-shot has no seeds.",
        ),
        title="Known and new documents",
    )


def _means(
    scores: Mapping[str, NDArray[np.float64]], names: Sequence[str], places: NDArray[np.bool_]
) -> dict[str, Cell]:
    """Return the score of each method on some of the queries."""
    cells = [mean_cell([100.0 * float(row.mean()) for row in scores[name][:, places]]) for name in names]
    return dict(zip(names, marked(cells), strict=True))
