"""What came out of a comparison or an ablation of translators, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.loading import Results
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, count_cell, marked, mean_cell
from unimoe.analysis.tables.differences import NO_DIFFERENCE, TESTED, Arms, differences, mean_interval, pair_up
from unimoe.io import read_json
from unimoe.results import arm_dir
from unimoe.studies.translator.compare.arms import BASELINE, COMPONENTS, TranslatorComparison
from unimoe.studies.translator.compare.runs import TRAINING_FILE, Chosen, TranslatorRun
from unimoe.studies.translator.compare.speed import BATCH
from unimoe.studies.translator.data.caption_pairs import CaptionPairs

Scores = NDArray[np.float64]

_MODEL_COLUMNS = (
    "model", "dev", "MRR", "95 % interval", "R@1", "R@5", "R@10", "median", "p75", "vs ridge", "interval", "p",
    "parameters", "MB", "s", "µs/query", "setting",
)  # fmt: skip
_ROW_COLUMNS = (
    "arm", "MRR", "vs all_on", "interval", "p", "queue negatives", "mined", "further positives", "past predictions",
    "same-image pairs", "epoch",
)  # fmt: skip
_FIRED = ("queue_negatives", "mined_negatives", "extra_positives", "past_predictions", "same_image_pairs")

_INTERVALS = (
    f"{TESTED}Queries are images here: captions of one image are one observation, and scores are averaged over them "
    "first. Seeds pair: each splits the training images anew, the same way for every arm."
)


def model_table(run: TranslatorRun, results: Results, chosen: Mapping[str, Chosen]) -> Table:
    """One row per model.

    Args:
        run: the comparison.
        results: those of its folder.
        chosen: the setting of each model.
    """
    comparison, names = run.comparison, list(chosen)
    scores = {name: _by_image(results, comparison, name, run.test) for name in names}
    against = _against(results, comparison, scores, BASELINE)
    mrr = marked([_mean(results, comparison, name, "mrr") for name in names])
    rows = []
    for name, cell in zip(names, mrr, strict=True):
        records = _records(results, comparison, name)
        others = [_mean(results, comparison, name, f"recall@{k}") for k in (1, 5, 10)]
        ranks = [_mean(results, comparison, name, rank, factor=1.0) for rank in ("median_rank", "p75_rank")]
        setting = ", ".join(f"{key} {value:g}" for key, value in chosen[name].changes.items())
        dev = chosen[name].dev
        rows.append(
            (
                Cell(name),
                mean_cell([] if dev is None else [100.0 * dev]),
                cell,
                mean_interval(scores[name]),
                *others,
                *ranks,
                *against.get(name, NO_DIFFERENCE),
                count_cell(records[0]["parameters"]),
                _number(records[0]["weight_bytes"] / 1e6, 2),
                _number(float(np.median([record["seconds"] for record in records])), 1),
                _number(1e3 * float(np.median([record["ms_per_query"] for record in records])), 2),
                Cell(setting or ABSENT),
            )
        )
    return Table(
        name="translators",
        caption=_caption(run, "Translators"),
        columns=_MODEL_COLUMNS,
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "Scores x 100, mean over seeds ± SD; dev: the chosen setting on the tuning split. " + _INTERVALS,
            f"µs/query: translation alone in batches of {BATCH}, median, on {records[0]['device']}. "
            "s: of training, median over seeds. MB: of the weights as they are kept.",
            *_notes(run, results),
        ),
        csv_only=frozenset({"setting"}),
        title="Translators",
    )


def ablation_table(run: TranslatorRun, results: Results, names: Sequence[str]) -> Table:
    """One row per switched component, with how often components had something to do, per training."""
    comparison = run.comparison
    scores = {name: _by_image(results, comparison, name, run.test) for name in names}
    against = _against(results, comparison, scores, names[0])
    mrr = marked([_mean(results, comparison, name, "mrr") for name in names])
    rows = []
    for name, cell in zip(names, mrr, strict=True):
        records = _records(results, comparison, name)
        fired = [round(float(np.mean([record["fired"].get(key, 0) for record in records]))) for key in _FIRED]
        epoch = float(np.mean([record["best_epoch"] for record in records]))
        difference = against.get(name, NO_DIFFERENCE)
        rows.append((Cell(name), cell, *difference, *map(count_cell, fired), _number(epoch, 1)))
    return Table(
        name="ablation",
        caption=_caption(run, "Components of the objective"),
        columns=_ROW_COLUMNS,
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "MRR x 100, mean over seeds ± SD. " + _INTERVALS,
            "Counts are of one training, mean over seeds: caption-image pairs with an image of the queue, pairs left "
            "by mining, past predictions that were a caption's further positives, image-caption pairs with a past "
            "prediction, pairs of captions of one image in a batch. epoch: the best on dev.",
            *(f"{name}: {COMPONENTS[name][1]}." for name in names),
            *_notes(run, results),
        ),
        title="Ablation",
    )


def _caption(run: TranslatorRun, what: str) -> str:
    comparison, test = run.comparison, run.test
    return (
        f"{what} on {comparison.dataset}: {len(test):,} captions against a gallery of {len(test.image_ids):,} images, "
        f"{len(comparison.seeds)} seeds, {comparison.base.epochs} epochs."
    )


def _notes(run: TranslatorRun, results: Results) -> tuple[str, ...]:
    cosine = "centred cosine" if run.comparison.base.centre else "plain cosine"
    return (f"Ranked by the {cosine}.", *run.source.pairs.dropped.notes, *caveat_notes(results))


def _key(comparison: TranslatorComparison) -> str:
    return f"crossmodal/{comparison.dataset}"


def _by_image(results: Results, comparison: TranslatorComparison, name: str, test: CaptionPairs) -> Scores:
    """Reciprocal ranks ``(seeds, images)``, averaged over the captions of each image."""
    by_caption = results.scores(name, _key(comparison), comparison.seeds)
    order = sorted(range(len(test)), key=test.caption_ids.__getitem__)  # as results list captions
    image_of = test.image_of[order]
    counts = np.bincount(image_of)
    return np.array([np.bincount(image_of, weights=row) / counts for row in by_caption])


def _against(
    results: Results, comparison: TranslatorComparison, scores: Mapping[str, Scores], baseline: str
) -> dict[str, tuple[Cell, Cell, Cell]]:
    """Return difference to a baseline, its interval and p, by arm; empty where the baseline was left out."""
    asked = {
        name: Arms(own, scores[baseline], pair_up(results, _key(comparison), name, baseline))
        for name, own in scores.items()
        if baseline in scores and name != baseline
    }
    return {name: found.cells for name, found in differences(asked).items()}


def _mean(results: Results, comparison: TranslatorComparison, name: str, metric: str, factor: float = 100.0) -> Cell:
    found = [results.result(name, seed, _key(comparison)) for seed in comparison.seeds]
    return mean_cell([factor * result.aggregate[metric] for result in found if result is not None])


def _records(results: Results, comparison: TranslatorComparison, name: str) -> list[dict[str, Any]]:
    return [read_json(arm_dir(results.output_dir, name, seed) / TRAINING_FILE) for seed in comparison.seeds]


def _number(value: float, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}", value=value)
