"""Whether a head has learnt the task or the documents: test queries by whether training knew what they look for.

A head that pulls the relevant documents of the training queries to where queries lie gains on every test query that
looks for one of them, and may lose on all others. A mean over both says nothing of new documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.corrections import holm
from unimoe.analysis.loading import Results
from unimoe.analysis.resampling import sign_flip_p
from unimoe.analysis.summaries.arms import marked, mean_cell, signed_cell
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.comparison.arms import ARMS, Comparison
from unimoe.data.names import result_name
from unimoe.training.heads.splits import Splits

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
    parts = {"known": known, "new": ~known}
    columns = {part: _columns(scores, places, comparison.resamples) for part, places in parts.items()}
    ordered = [name for name in ARMS if name in names]
    return Table(
        name="documents",
        caption=f"ndcg@{base.ndcg_k} on {dataset} by whether training knew a document that the test query looks for.",
        columns=("method", "known", "vs zero-shot", "p", "new", "vs zero-shot ", "p "),
        groups=(RowGroup("", tuple((Cell(n), *columns["known"][n], *columns["new"][n]) for n in ordered)),),
        notes=(
            f"known: the {known.sum():,} test queries with a relevant document that is relevant to a training query "
            f"too; new: the other {(~known).sum():,}. Scores x 100, mean over seeds ± SD. p: sign-flip test over "
            "queries of scores averaged over seeds, corrected by Holm within a column.",
        ),
        title="Known and new documents",
    )


def _columns(
    scores: Mapping[str, NDArray[np.float64]], places: NDArray[np.bool_], iterations: int
) -> dict[str, tuple[Cell, Cell, Cell]]:
    """Of each method: score, difference from the baseline, p; absent where there are no such queries."""
    nothing = (Cell(ABSENT), Cell(ABSENT), Cell(ABSENT))
    if not places.any():
        return dict.fromkeys(scores, nothing)
    chosen = {name: values[:, places] for name, values in scores.items()}
    cells = marked([mean_cell([100.0 * float(row.mean()) for row in values]) for values in chosen.values()])
    found = {name: (cell, Cell(ABSENT), Cell(ABSENT)) for name, cell in zip(chosen, cells, strict=True)}
    others = [name for name in chosen if name != BASELINE]
    if BASELINE in chosen and others:
        before = chosen[BASELINE].mean(axis=0)
        differences = np.column_stack([chosen[name].mean(axis=0) - before for name in others])
        differences[np.abs(differences) < 1e-12] = 0.0  # a tie, but for the rounding of an average
        p_values = holm(sign_flip_p(differences, iterations, seed=0).tolist())
        for name, delta, p in zip(others, 100.0 * differences.mean(axis=0), p_values, strict=True):
            found[name] = (found[name][0], signed_cell(delta), p_cell(p))
    return found


def p_cell(p: float) -> Cell:
    """A p-value with three digits."""
    return Cell("<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0"), value=p)
