"""The results of a comparison as two tables: one row per method, and the same by known and new documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.arms import ZERO_SHOT
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, marked
from unimoe.core.io import read_json
from unimoe.data.catalog import result_name
from unimoe.results import arm_dir
from unimoe.results.folder import Results
from unimoe.studies.common.differences import (
    NO_DIFFERENCE,
    TESTED,
    Arms,
    Difference,
    differences,
    mean_interval,
    of_seeds,
    pair_up,
)
from unimoe.studies.common.splits import Splits
from unimoe.studies.heads.compare.arms import ARMS, Comparison, in_words
from unimoe.studies.heads.compare.methods import Chosen
from unimoe.studies.heads.compare.testing import TRAINING_FILE
from unimoe.studies.heads.config import forward_passes

BASELINES = {"infonce": ("vs InfoNCE", "interval", "p"), ZERO_SHOT: ("vs zero-shot", "interval ", "p ")}
"""Those that methods are compared with, and the columns of the differences."""

_SCORES = ("method", "train", "dev", "test", "95 % interval", "gap")
_COSTS = ("passes", "s", "peak MB", "weights kB", "setting")

_SCORES_NOTE = (
    "Scores x 100. train, test: mean over seeds ± SD; dev: the setting's one tuning run, chosen by it. Interval of the "
    "test mean for other seeds and other queries (over queries alone where there are not several seeds). gap: train "
    "minus test."
)
_DIFFERENCES_NOTE = (
    f"vs: difference of test means. {TESTED}Seeds pair where two methods share the order of the training queries and "
    "the first weights, as all but seed_recipe do."
)
_COSTS_NOTES = (
    "passes: forward passes of a training, one for each head that scores a step's batch. A step of evolution takes one "
    "for each perturbation or individual, a step of gradients one and its backward pass: equal steps are not equal "
    "work.",
    "s: seconds of the training's steps, median over seeds. peak MB: memory of torch within a step beside weights and "
    "data. weights kB: memory of the weights between steps, without an optimizer's moments.",
)


def method_table(results: Results, comparison: Comparison, chosen: Mapping[str, Chosen], notes: Sequence[str]) -> Table:
    """Return one row per method, in the order of ``ARMS``; ``notes`` are facts about the pools."""
    base, results = comparison.base, of_seeds(results, comparison.seeds)
    dataset = result_name(base.task)
    key, metric = f"reranking/{dataset}", f"ndcg@{base.ndcg_k}"
    names = [name for name in ARMS if name in chosen]
    scores = _scores(results, names, key)
    baselines = [name for name in BASELINES if name in scores and len(names) > 1]
    found = differences(
        {
            (name, baseline): Arms(scores[name], scores[baseline], pair_up(results, key, name, baseline))
            for baseline in baselines
            for name in names
            if name != baseline
        }
    )
    records = {name: _records(results, name, key) for name in names}
    test = _means(scores, names)
    rows = [
        _row(name, scores[name], test[name], records[name], chosen[name], [found.get((name, b)) for b in baselines])
        for name in names
    ]
    seeds, queries = len(comparison.seeds), next(iter(scores.values())).shape[1]
    return Table(
        name="methods",
        caption=f"{metric} of heads on {dataset}: {queries:,} test queries, {seeds} seeds, {base.num_steps} steps, "
        f"{comparison.settings} settings of each method tried on dev.",
        columns=(*_SCORES, *(column for name in baselines for column in BASELINES[name]), *_COSTS),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            _SCORES_NOTE,
            *([_DIFFERENCES_NOTE] if baselines else []),
            *_COSTS_NOTES,
            *(f"{name}: {ARMS[name].description}." for name in names),
            *notes,
            *caveat_notes(results),
        ),
        csv_only=frozenset({"setting"}),
        title="Methods",
    )


def known_queries(splits: Splits) -> list[str]:
    """Return the test queries with a relevant document that is relevant to a training query too, sorted."""
    known = splits.train.relevant_documents()
    return sorted(
        query_id
        for query_id, grades in splits.test.qrels.items()
        if any(grade > 0 and document_id in known for document_id, grade in grades.items())
    )


def overlap_table(results: Results, comparison: Comparison, splits: Splits, names: Sequence[str]) -> Table:
    """Return each method's scores on test queries with and without a relevant document known from training.

    They show whether a head has learnt the task or the documents. A head that pulls the relevant documents of the
    training queries to where queries lie gains on every test query that looks for one of them, and may lose on all
    others. A mean over both says nothing of new documents.
    """
    base, results = comparison.base, of_seeds(results, comparison.seeds)
    dataset = result_name(base.task)
    key = f"reranking/{dataset}"
    scores = _scores(results, names, key)
    known = np.isin(sorted(splits.test.qrels), known_queries(splits))
    parts = {part: places for part, places in {"known": known, "new": ~known}.items() if places.any()}
    others = [name for name in scores if name != ZERO_SHOT] if ZERO_SHOT in scores else []
    found = differences(
        {
            (name, part): Arms(
                scores[name][:, places], scores[ZERO_SHOT][:, places], pair_up(results, key, name, ZERO_SHOT)
            )
            for part, places in parts.items()
            for name in others
        }
    )
    ordered = [name for name in ARMS if name in names]
    means = {
        part: _means({name: own[:, places] for name, own in scores.items()}, ordered) for part, places in parts.items()
    }

    def cells(name: str, part: str) -> tuple[Cell, ...]:
        mean = means[part][name] if part in parts else Cell(ABSENT)
        difference = found[name, part].cells if (name, part) in found else NO_DIFFERENCE
        return (mean, *difference) if others else (mean,)

    against = ("vs zero-shot", "interval", "p") if others else ()

    return Table(
        name="documents",
        caption=f"ndcg@{base.ndcg_k} on {dataset} by whether training knew a document that the test query looks for.",
        columns=("method", "known", *against, "new", *(f"{column} " for column in against)),
        groups=(RowGroup("", tuple((Cell(n), *cells(n, "known"), *cells(n, "new")) for n in ordered)),),
        notes=(
            f"known: the {known.sum():,} test queries with a relevant document that is relevant to a training query "
            f"too; new: the other {(~known).sum():,}. Scores x 100, mean over seeds ± SD.",
            *([f"{TESTED}Zero-shot has no seeds."] if others else []),
        ),
        title="Known and new documents",
    )


def _row(
    name: str,
    scores: NDArray[np.float64],
    test: Cell,
    records: Sequence[Mapping[str, Any]],
    chosen: Chosen,
    against: Sequence[Difference | None],
) -> tuple[Cell, ...]:
    train = [100.0 * record["train"] for record in records]
    peaks = [record["peak_bytes"] for record in records if record["peak_bytes"] is not None]
    costs = [Cell(ABSENT)] * 3
    if peaks:
        seconds = float(np.median([record["seconds"] for record in records]))
        tenths = (Cell.number(value, ".1f") for value in (seconds, max(peaks) / 1e6))
        costs = [*tenths, Cell.count(round(records[0]["weight_bytes"] / 1e3))]
    return (
        Cell(name),
        Cell.mean(train),
        Cell.mean([] if chosen.dev is None else [100.0 * chosen.dev]),
        test,
        mean_interval(scores),
        Cell.signed(float(np.mean(train)) - 100.0 * float(scores.mean())),
        *(cell for found in against for cell in (found.cells if found else NO_DIFFERENCE)),
        Cell.count(forward_passes(chosen.config)),
        *costs,
        Cell(in_words(chosen.setting) or ABSENT),
    )


def _scores(results: Results, names: Sequence[str], key: str) -> dict[str, NDArray[np.float64]]:
    """Return the scores ``(seeds, queries)`` of each method."""
    return {name: results.scores(name, key, results.seeds(name, key) or [None]) for name in names}


def _means(scores: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> dict[str, Cell]:
    cells = [Cell.mean([100.0 * float(row.mean()) for row in scores[name]]) for name in names]
    return dict(zip(names, marked(cells), strict=True))


def _records(results: Results, name: str, key: str) -> list[dict[str, Any]]:
    seeds = results.seeds(name, key) or (None,)
    return [read_json(arm_dir(results.output_dir, name, seed) / TRAINING_FILE, dict[str, Any]) for seed in seeds]
