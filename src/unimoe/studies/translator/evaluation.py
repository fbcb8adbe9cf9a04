"""How a translator's captions find their images: exact ranks, and an ordinary result that the analysis reads.

A score is the float64 product of two vectors, rounded to float32, as trec_eval compares scores; equal scores rank by
image id, descending, as in trec_eval. The main metric is ``mrr``, uncut, over all unique images of the split; it
depends on their number, which the result holds as ``gallery_size``. The TREC run is cut to 100 images a caption; ranks
by caption, exact beyond that, are the metric ``rank``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.core.errors import named_inputs
from unimoe.evaluation.spec import Evaluation, Outcome, model_hashes
from unimoe.evaluation.store import ResultStore
from unimoe.metrics import Scores
from unimoe.results import EvalResult, Identity, Task, TrainingBudget
from unimoe.retrieval.dense import search
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats, Rows
from unimoe.studies.translator.models.interface import Numbers, Translator

TASK: Task = "crossmodal"
MAIN_METRIC = "mrr"
RUN_DEPTH = 100

_CUTOFFS = (1, 5, 10)
"""K of Recall@K."""

_CELLS = 2**23
"""Scores computed at once: 64 MiB."""


def image_ranks(
    translated: Floats,
    gallery: Floats,
    image_of: NDArray[np.integer[Any]],
    *,
    image_ids: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Rows:
    """Return the rank of each caption's image among all images by inner product, from 1, ``(n,)`` int64.

    Captions ``(n, D)`` and the gallery ``(m, D)``, each image once, are in the common space, of unit length to rank by
    the cosine. Without ``image_ids``, of equal scores the later row goes first.
    """
    where = torch.device("cpu" if torch.device(device).type == "mps" else device)  # MPS has no float64
    order = torch.arange(len(gallery), device=where)
    if image_ids is not None:
        order[sorted(range(len(gallery)), key=image_ids.__getitem__)] = torch.arange(len(gallery), device=where)
    images = torch.from_numpy(gallery).to(where).double().T
    captions = torch.from_numpy(translated)
    targets = torch.from_numpy(np.asarray(image_of, dtype=np.int64)).to(where)[:, None]
    ranks, rows = [], max(1, _CELLS // len(gallery))
    for begin in range(0, len(captions), rows):
        own = targets[begin : begin + rows]
        scores = (captions[begin : begin + rows].to(where).double() @ images).float()
        true = scores.gather(1, own)
        before = (scores > true) | ((scores == true) & (order > order[own]))
        ranks.append(1 + before.sum(1))
    found: Rows = torch.cat(ranks).cpu().numpy()
    return found


def rank_values(ranks: Rows) -> dict[str, NDArray[np.float64]]:
    """Return the value of each rank by metric: ``mrr`` (uncut), ``recall@1``, ``recall@5``, ``recall@10``, ``rank``."""
    values = {"mrr": 1.0 / ranks} | {f"recall@{k}": (ranks <= k).astype(np.float64) for k in _CUTOFFS}
    return values | {"rank": ranks.astype(np.float64)}


def rank_metrics(ranks: Rows, gallery_size: int) -> dict[str, float]:
    """Return means of ``rank_values``, ``median_rank``, ``p75_rank``, and ``gallery_size``, on which all depend."""
    means = {name: float(values.mean()) for name, values in rank_values(ranks).items()}
    median, upper = np.percentile(ranks, [50, 75])
    return means | {"median_rank": float(median), "p75_rank": float(upper), "gallery_size": float(gallery_size)}


def evaluate(translator: Translator, pairs: CaptionPairs, device: torch.device) -> dict[str, float]:
    """Return MRR, Recall@K, ranks and gallery size of validation pairs among their own unique images.

    Raises:
        DataError: a caption or image has no direction, which is named.
    """
    translated, gallery = _translated(translator, pairs, "validation")
    ranks = image_ranks(translated, gallery, pairs.image_of, image_ids=pairs.image_ids, device=device)
    return rank_metrics(ranks, len(pairs.image_ids))


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

    ``pairs`` are the captions and all unique images of the part. ``encoder`` (``id@hash``) and ``prompt`` are None
    where the files do not state them, ``checkpoint`` is ``none`` for closed forms. Without ``translator_hash``, the
    content hash of what was learned, no existing result is known to be this translator's: it is evaluated again.
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

    ``texts`` are the captions by id, for drill-downs; without them ids are shown. ``given`` are command-line overrides,
    which each result records.

    Raises:
        DataError: the place of the result is taken by another evaluation, the translator takes other dimensions, or a
            caption or image has no direction, which is named.
    """

    def compute() -> Outcome:
        start = time.perf_counter()
        captions, images = _translated(translator, pairs, spec.dataset)
        ranks = image_ranks(captions, images, pairs.image_of, image_ids=pairs.image_ids, device=device)
        run = search(captions, pairs.caption_ids, images, pairs.image_ids, RUN_DEPTH, device=device)
        per_query = {
            metric: dict(zip(pairs.caption_ids, values.tolist(), strict=True))
            for metric, values in rank_values(ranks).items()
        }
        image_of = zip(pairs.caption_ids, pairs.image_of, strict=True)
        return Outcome(
            main_metric=MAIN_METRIC,
            run=run,
            qrels={caption_id: {pairs.image_ids[row]: 1} for caption_id, row in image_of},
            queries=texts or {caption_id: caption_id for caption_id in pairs.caption_ids},
            scores=Scores(per_query, rank_metrics(ranks, len(pairs.image_ids)), unjudged_queries=[]),
            items=len(pairs),
            seconds=time.perf_counter() - start,
            device=device,
        )

    return ResultStore(output_dir, given).evaluated(spec, compute)


def _translated(translator: Translator, pairs: CaptionPairs, name: str) -> tuple[Floats, Floats]:
    """Return captions ``(N, D)`` and images ``(M, D)`` in the translator's space, of unit length."""

    def named(side: str, ids: Sequence[str], translate: Callable[[Numbers], Floats], vectors: Floats) -> Floats:
        with named_inputs(lambda index: f"{name}, {side} {ids[index]!r}"):
            return translate(vectors)

    captions = named("caption", pairs.caption_ids, translator.translate, pairs.captions)
    return captions, named("image", pairs.image_ids, translator.gallery, pairs.images)
