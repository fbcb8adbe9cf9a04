"""Tables of a comparison and of an ablation of translators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, marked
from unimoe.core.io import read_json
from unimoe.results import arm_dir
from unimoe.results.folder import Results
from unimoe.studies.common.differences import NO_DIFFERENCE, TESTED, Arms, differences, mean_interval, pair_up
from unimoe.studies.translator.compare.arms import BASELINE, COMPONENTS
from unimoe.studies.translator.compare.runs import Chosen, TranslatorRun
from unimoe.studies.translator.compare.testing import TRAINING_FILE
from unimoe.studies.translator.models.interface import TIMED_BATCH

_SCORES = ("model", "dev", "MRR", "95 % interval", "R@1", "R@5", "R@10", "median", "p75")
_DIFFERENCES = ("vs ridge", "interval", "p")
_COSTS = ("parameters", "MB", "s", "µs/query", "setting")
_ROW_COLUMNS = (
    "arm", "MRR", "vs all_on", "interval", "p", "queue negatives", "mined", "further positives", "past predictions",
    "same-image pairs", "epoch",
)  # fmt: skip
_COUNTS = ("queue_negatives", "mined_negatives", "extra_positives", "past_predictions", "same_image_pairs")

_INTERVALS = (
    f"{TESTED}Queries are images here: captions of one image are one observation, and scores are averaged over them "
    "first. Seeds pair: each splits the training images in its own way, the same for every arm."
)


def model_table(run: TranslatorRun, results: Results, chosen: Mapping[str, Chosen]) -> Table:
    """Return a table with a row for each model of a comparison, from the results of its folder."""
    arms = _Arms(run, results, list(chosen), BASELINE)
    rows = []
    for name, mrr in arms.mrr.items():
        records = arms.records(name)
        setting = ", ".join(f"{key} {value:g}" for key, value in chosen[name].changes.items())
        dev = chosen[name].dev
        rows.append(
            (
                Cell(name),
                Cell.mean([] if dev is None else [100.0 * dev]),
                mrr,
                mean_interval(arms.scores[name]),
                *(arms.mean(name, f"recall@{k}") for k in (1, 5, 10)),
                *(arms.mean(name, rank, factor=1.0) for rank in ("median_rank", "p75_rank")),
                *(arms.against.get(name, NO_DIFFERENCE) if arms.against else ()),
                Cell.count(records[0]["parameters"]),
                Cell.number(records[0]["weight_bytes"] / 1e6, ".2f"),
                Cell.number(float(np.median([record["seconds"] for record in records])), ".1f"),
                Cell.number(1e3 * float(np.median([record["ms_per_query"] for record in records])), ".2f"),
                Cell(setting or ABSENT),
            )
        )
    return Table(
        name="translators",
        caption=_caption(run, "Translators"),
        columns=(*_SCORES, *(_DIFFERENCES if arms.against else ()), *_COSTS),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "Scores x 100, mean over seeds ± SD; dev: the chosen setting on the tuning split. "
            + (_INTERVALS if arms.against else ""),
            f"µs/query: translation alone in batches of {TIMED_BATCH}, median, on {records[0]['device']}. "
            "s: of training, median over seeds. MB: of the weights as they are kept.",
            *_notes(run, results),
        ),
        csv_only=frozenset({"setting"}),
        title="Translators",
    )


def ablation_table(run: TranslatorRun, results: Results, names: Sequence[str]) -> Table:
    """Return a table with a row for each switched component, with counts of how often components were active."""
    arms = _Arms(run, results, names, names[0])
    rows = []
    for name, mrr in arms.mrr.items():
        records = arms.records(name)
        counts = [round(float(np.mean([record["fired"].get(key, 0) for record in records]))) for key in _COUNTS]
        epoch = float(np.mean([record["best_epoch"] for record in records]))
        difference = arms.against.get(name, NO_DIFFERENCE)
        rows.append((Cell(name), mrr, *difference, *map(Cell.count, counts), Cell.number(epoch, ".1f")))
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


class _Arms:
    """The results of some arms.

    Attributes:
        scores: reciprocal ranks ``(seeds, images)`` by arm, averaged over the captions of each image.
        mrr: a cell for each arm, the best marked.
        against: difference to the baseline, its interval and p, by arm; empty where the baseline was left out.
    """

    def __init__(self, run: TranslatorRun, results: Results, names: Sequence[str], baseline: str) -> None:
        self._results, self._seeds = results, run.comparison.seeds
        self._key = f"crossmodal/{run.comparison.dataset}"
        order = sorted(range(len(run.test)), key=run.test.caption_ids.__getitem__)  # as results list captions
        self.scores = {name: self._by_image(name, run.test.image_of[order]) for name in names}
        self.mrr = dict(zip(names, marked([self.mean(name, "mrr") for name in names]), strict=True))
        pairs = {
            name: Arms(own, self.scores[baseline], pair_up(results, self._key, name, baseline))
            for name, own in self.scores.items()
            if baseline in self.scores and name != baseline
        }
        self.against = {name: found.cells for name, found in differences(pairs).items()}

    def mean(self, name: str, metric: str, factor: float = 100.0) -> Cell:
        found = [self._results.result(name, seed, self._key) for seed in self._seeds]
        return Cell.mean([factor * result.aggregate[metric] for result in found if result is not None])

    def records(self, name: str) -> list[dict[str, Any]]:
        return [
            read_json(arm_dir(self._results.output_dir, name, seed) / TRAINING_FILE, dict[str, Any])
            for seed in self._seeds
        ]

    def _by_image(self, name: str, image_of: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(image_of)
        by_caption = self._results.scores(name, self._key, self._seeds)
        return np.array([np.bincount(image_of, weights=row) / counts for row in by_caption])


def _caption(run: TranslatorRun, what: str) -> str:
    comparison, test = run.comparison, run.test
    return (
        f"{what} on {comparison.dataset}: {len(test):,} captions against a gallery of {len(test.image_ids):,} images, "
        f"{len(comparison.seeds)} seeds, {comparison.base.epochs} epochs."
    )


def _notes(run: TranslatorRun, results: Results) -> tuple[str, ...]:
    cosine = "centred cosine" if run.comparison.base.centre else "plain cosine"
    return (f"Ranked by the {cosine}.", *run.source.pairs.dropped.notes, *caveat_notes(results))
