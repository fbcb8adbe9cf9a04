"""A translator as an arm: how its captions find their images, as an ordinary result that the analysis reads like any.

The main metric is ``mrr``, uncut, over all unique images of the split; it depends on their number, which stands beside
it as ``gallery_size``. The TREC run is cut to 100 images a caption; ranks by caption, exact beyond that, are the metric
``rank``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unimoe.errors import DataError, InputError
from unimoe.evaluation.measuring import Found
from unimoe.evaluation.writing import result_of, write_found
from unimoe.metrics import Scores
from unimoe.results import (
    EvalResult,
    Identity,
    Task,
    TrainingBudget,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
)
from unimoe.retrieval.dense import search
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
from unimoe.studies.translator.models.interface import Floats, Translator
from unimoe.studies.translator.models.ranking import Advance, Rows, image_ranks, rank_metrics, rank_values

TASK: Task = "crossmodal"
MAIN_METRIC = "mrr"
RUN_DEPTH = 100

_UNIT = 1.001


@dataclass(frozen=True)
class CrossmodalMeasurement:
    """One translator on one split of captions and images.

    Attributes:
        arm: its name.
        seed: of the training; null where there was none.
        experiment: what results call the comparison.
        dataset: what they call the data.
        split: what they call this part.
        pairs: the captions, and all unique images of the part.
        translator: what is measured.
        config: the whole configuration.
        device: where blocks of scores are computed.
        encoder: identity of the captions' encoder, ``id@hash``; null where files do not tell.
        prompt: name and hash of its prefixes and lengths; likewise.
        texts: caption id to text, for drill-downs; ids take the place of texts where there are none.
        translator_hash: content hash of what was learned.
        checkpoint: which state of a training; ``none`` for closed forms.
        training: what it took.
        caveats: why the result is unfit for decisions.
    """

    arm: str
    seed: int | None
    experiment: str
    dataset: str
    split: str
    pairs: CaptionPairs
    translator: Translator
    config: dict[str, Any]
    device: str = "cpu"
    encoder: str | None = None
    prompt: str | None = None
    texts: Mapping[str, str] | None = None
    translator_hash: str | None = None
    checkpoint: Literal["best", "last", "none"] = "none"
    training: TrainingBudget | None = None
    caveats: Sequence[str] = field(default_factory=tuple)

    @property
    def identity(self) -> Identity:
        """What is measured."""
        return Identity(
            experiment=self.experiment,
            base_model=self.encoder,
            checkpoint=self.checkpoint,
            split=self.split,
            first_stage=None,
            depth=None,
            pool=None,
            prompt=self.prompt,
            max_queries=None,
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Content hashes of what scores depend on, by name."""
        known = {
            "base_model": self.encoder and self.encoder.rpartition("@")[2],
            "prompt": self.prompt and self.prompt.rpartition("@")[2],
            "checkpoint": self.translator_hash,
        }
        return {"collection": self.pairs.content_hash} | {name: value for name, value in known.items() if value}


def evaluate_crossmodal(
    output_dir: Path,
    measurement: CrossmodalMeasurement,
    given: Sequence[str] = (),
    advance: Advance | None = None,
) -> EvalResult:
    """Rank, score and write result, TREC run, judgments and drill-down, unless they are there and of the same content.

    Without ``translator_hash`` nobody can tell whether it is the same translator, and the work is always done.

    Args:
        output_dir: the experiment's folder.
        measurement: what is measured.
        given: options given by hand, for provenance.
        advance: called with the number of captions ranked.

    Raises:
        DataError: the place of the result is taken by another measurement, the translator takes other dimensions, or a
            caption or image has no direction, which is named.
    """
    place = (output_dir, measurement.arm, measurement.seed, TASK, measurement.dataset)
    path = result_path(*place)
    if path.exists():
        refuse_other_identity(path, measurement.identity, measurement.dataset)
        there = read_result(path)
        same = (there.provenance.hashes, there.caveats) == (measurement.hashes, list(measurement.caveats))
        if same and measurement.translator_hash is not None and run_path(*place).exists():
            return there
    found = _found(measurement, advance)
    result = result_of(
        found,
        arm=measurement.arm,
        seed=measurement.seed,
        task=TASK,
        dataset=measurement.dataset,
        identity=measurement.identity,
        hashes=measurement.hashes,
        config=measurement.config,
        device=measurement.device,
        dtype="float32",
        given=given,
        caveats=measurement.caveats,
        training=measurement.training,
    )
    return write_found(output_dir, result, found)


def translated_pairs(translator: Translator, pairs: CaptionPairs, name: str) -> tuple[Floats, Floats]:
    """Captions ``(N, D)`` and images ``(M, D)`` in the translator's space, of unit length.

    Raises:
        DataError: the translator takes other dimensions, or a caption or image has no direction, which is named.
    """
    sides = []
    for side, ids, translate, vectors in (
        ("caption", pairs.caption_ids, translator.translate, pairs.captions),
        ("image", pairs.image_ids, translator.gallery, pairs.images),
    ):
        try:
            sides.append(translate(vectors))
        except InputError as error:
            raise DataError(f"{name}, {side} {ids[error.index]!r}: {error.reason}") from None
    return sides[0], sides[1]


def crossmodal_scores(pairs: CaptionPairs, ranks: Rows) -> Scores:
    """The measures of ranks, by caption and on average; see ``rank_values`` and ``rank_metrics``."""
    per_query = {
        metric: dict(zip(pairs.caption_ids, values.tolist(), strict=True))
        for metric, values in rank_values(ranks).items()
    }
    return Scores(per_query, rank_metrics(ranks, len(pairs.image_ids)), unjudged_queries=[])


def _found(measurement: CrossmodalMeasurement, advance: Advance | None) -> Found:
    pairs, start = measurement.pairs, time.perf_counter()
    captions, images = translated_pairs(measurement.translator, pairs, measurement.dataset)
    ranks = image_ranks(
        captions, images, pairs.image_of, image_ids=pairs.image_ids, device=measurement.device, advance=advance
    )
    run = search(
        captions,
        pairs.caption_ids,
        images,
        pairs.image_ids,
        RUN_DEPTH,
        device=measurement.device,
        longest=_UNIT,
    )
    scores = crossmodal_scores(pairs, ranks)
    rows = np.asarray(pairs.image_of).tolist()
    named = zip(pairs.caption_ids, rows, strict=True)
    return Found(
        main_metric=MAIN_METRIC,
        aggregate=scores.aggregate,
        qrels={caption_id: {pairs.image_ids[row]: 1} for caption_id, row in named},
        queries=measurement.texts or {caption_id: caption_id for caption_id in pairs.caption_ids},
        run=run,
        scores=scores,
        items=len(pairs),
        seconds=time.perf_counter() - start,
    )
