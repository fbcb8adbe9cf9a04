"""How a translator's captions find their images, as an ordinary result that the analysis reads like any other.

The main metric is ``mrr``, uncut, over all unique images of the split; it depends on their number, which the result
holds as ``gallery_size``. The TREC run is cut to 100 images a caption; ranks by caption, exact beyond that, are the
metric ``rank``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unimoe.core.errors import named_inputs
from unimoe.evaluation.spec import Evaluation, Outcome, model_hashes
from unimoe.evaluation.store import ResultStore
from unimoe.metrics import Scores
from unimoe.results import EvalResult, Identity, Task, TrainingBudget
from unimoe.retrieval.dense import search
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats, Rows
from unimoe.studies.translator.models.interface import Numbers, Translator
from unimoe.studies.translator.models.ranking import image_ranks, rank_metrics, rank_values

TASK: Task = "crossmodal"
MAIN_METRIC = "mrr"
RUN_DEPTH = 100


def crossmodal_spec(
    arm: str,
    seed: int | None,
    *,
    experiment: str,
    dataset: str,
    split: str,
    pairs: CaptionPairs,
    config: Mapping[str, Any],
    encoder: str | None = None,
    prompt: str | None = None,
    translator_hash: str | None = None,
    checkpoint: Literal["best", "last", "none"] = "none",
    training: TrainingBudget | None = None,
    caveats: Sequence[str] = (),
) -> Evaluation:
    """Return the spec of a translator on one split of captions and images.

    Args:
        arm: its name.
        seed: of the training; None where there was none.
        experiment: the comparison's name in results.
        dataset: the data's name in results.
        split: the part's name in results.
        pairs: the captions, and all unique images of the part.
        config: the whole configuration.
        encoder: identity of the captions' encoder, ``id@hash``; None where the files do not state it.
        prompt: name and hash of its prefixes and lengths; None where the files do not state it.
        translator_hash: content hash of what was learned; without it no existing result is known to be this
            translator's, and it is always evaluated again.
        checkpoint: which state of a training; ``none`` for closed forms.
        training: steps and examples that the training took.
        caveats: why the result is unfit for decisions.
    """
    return Evaluation(
        system=arm,
        seed=seed,
        task=TASK,
        dataset=dataset,
        identity=Identity(
            experiment=experiment,
            base_model=encoder,
            checkpoint=checkpoint,
            split=split,
            first_stage=None,
            depth=None,
            pool=None,
            prompt=prompt,
            max_queries=None,
        ),
        hashes={"collection": pairs.content_hash} | model_hashes(encoder, prompt, translator_hash),
        config=config,
        main_metric=MAIN_METRIC,
        dtype="float32",
        caveats=caveats,
        training=training,
        reusable=translator_hash is not None,
    )


def evaluate_crossmodal(
    output_dir: Path,
    spec: Evaluation,
    translator: Translator,
    pairs: CaptionPairs,
    *,
    texts: Mapping[str, str] | None = None,
    device: str = "cpu",
    given: Sequence[str] = (),
) -> EvalResult:
    """Rank, score, and write result, TREC run, judgments and drill-down, unless the result exists.

    Args:
        output_dir: the experiment's folder.
        spec: of the evaluation; see ``crossmodal_spec``.
        translator: the translator.
        pairs: the captions, and all unique images of the part.
        texts: caption id to text, for drill-downs; without them ids are shown.
        device: where blocks of scores are computed.
        given: command-line overrides, which each result records.

    Raises:
        DataError: the place of the result is taken by another evaluation, the translator takes other dimensions, or a
            caption or image has no direction, which is named.
    """

    def evaluate() -> Outcome:
        start = time.perf_counter()
        captions, images = translated_pairs(translator, pairs, spec.dataset)
        ranks = image_ranks(captions, images, pairs.image_of, image_ids=pairs.image_ids, device=device)
        run = search(captions, pairs.caption_ids, images, pairs.image_ids, RUN_DEPTH, device=device)
        rows = np.asarray(pairs.image_of).tolist()
        return Outcome(
            main_metric=MAIN_METRIC,
            run=run,
            qrels={key: {pairs.image_ids[row]: 1} for key, row in zip(pairs.caption_ids, rows, strict=True)},
            queries=texts or {caption_id: caption_id for caption_id in pairs.caption_ids},
            scores=crossmodal_scores(pairs, ranks),
            items=len(pairs),
            seconds=time.perf_counter() - start,
            device=device,
        )

    return ResultStore(output_dir, given).evaluated(spec, evaluate)


def translated_pairs(translator: Translator, pairs: CaptionPairs, name: str) -> tuple[Floats, Floats]:
    """Return captions ``(N, D)`` and images ``(M, D)`` in the translator's space, of unit length.

    Raises:
        DataError: the translator takes other dimensions, or a caption or image has no direction, which is named.
    """

    def named(side: str, ids: Sequence[str], translate: Callable[[Numbers], Floats], vectors: Floats) -> Floats:
        with named_inputs(lambda index: f"{name}, {side} {ids[index]!r}"):
            return translate(vectors)

    captions = named("caption", pairs.caption_ids, translator.translate, pairs.captions)
    return captions, named("image", pairs.image_ids, translator.gallery, pairs.images)


def crossmodal_scores(pairs: CaptionPairs, ranks: Rows) -> Scores:
    """Return the metrics of ranks, by caption and on average; see ``rank_values`` and ``rank_metrics``."""
    per_query = {
        metric: dict(zip(pairs.caption_ids, values.tolist(), strict=True))
        for metric, values in rank_values(ranks).items()
    }
    return Scores(per_query, rank_metrics(ranks, len(pairs.image_ids)), unjudged_queries=[])
