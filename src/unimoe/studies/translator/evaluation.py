"""How a translator's captions find their images: exact ranks, and an ordinary outcome that the analysis reads.

A score is the float64 product of two vectors, rounded to float32, as trec_eval compares scores; equal scores rank by
image id, descending, as in trec_eval. The main metric is ``mrr``, uncut, over all unique images of the split; it
depends on their number, which the result holds as ``gallery_size``. The TREC run is cut to 100 images a caption; ranks
by caption, exact beyond that, are the metric ``rank``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.core.errors import named_inputs
from unimoe.evaluation.spec import Outcome
from unimoe.metrics import Scores
from unimoe.retrieval.dense import search
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats, Integers
from unimoe.studies.translator.models.translators import Translator

MAIN_METRIC = "mrr"
RUN_DEPTH = 100

_CUTOFFS = (1, 5, 10)  # K of Recall@K
_CELLS = 2**23  # scores computed at once: 64 MiB


def image_ranks(
    translated: Floats,
    gallery: Floats,
    image_of: NDArray[np.integer],
    *,
    image_ids: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Integers:
    """Return the rank of each caption's image among all images by inner product, from 1, ``(n,)`` int64.

    Captions ``(n, D)`` and the gallery ``(m, D)``, each image once, are in the common space, of unit length to rank by
    the cosine. Without ``image_ids``, of equal scores the later row goes first.
    """
    where = torch.device("cpu" if torch.device(device).type == "mps" else device)  # MPS has no float64
    order = torch.arange(len(gallery), device=where)
    if image_ids is not None:
        order[sorted(range(len(gallery)), key=image_ids.__getitem__)] = torch.arange(len(gallery), device=where)
    images = torch.from_numpy(gallery).to(where).double().T
    targets = torch.from_numpy(np.asarray(image_of, dtype=np.int64)).to(where)[:, None]
    size, ranks = max(1, _CELLS // len(gallery)), []
    for captions, own in zip(torch.split(torch.from_numpy(translated), size), torch.split(targets, size), strict=True):
        scores = (captions.to(where).double() @ images).float()
        true = scores.gather(1, own)
        before = (scores > true) | ((scores == true) & (order > order[own]))
        ranks.append(1 + before.sum(1))
    found: Integers = torch.cat(ranks).cpu().numpy()
    return found


def rank_values(ranks: Integers) -> dict[str, NDArray[np.float64]]:
    """Return the value of each rank by metric: ``mrr`` (uncut), ``recall@1``, ``recall@5``, ``recall@10``, ``rank``."""
    values = {MAIN_METRIC: 1.0 / ranks} | {f"recall@{k}": (ranks <= k).astype(np.float64) for k in _CUTOFFS}
    return values | {"rank": ranks.astype(np.float64)}


def rank_metrics(ranks: Integers, gallery_size: int) -> dict[str, float]:
    """Return means of ``rank_values``, ``median_rank``, ``p75_rank``, and ``gallery_size``, on which all depend."""
    means = {name: float(values.mean()) for name, values in rank_values(ranks).items()}
    median, upper = np.percentile(ranks, [50, 75])
    return means | {"median_rank": float(median), "p75_rank": float(upper), "gallery_size": float(gallery_size)}


def evaluate(translator: Translator, pairs: CaptionPairs, device: torch.device) -> dict[str, float]:
    """Return MRR, Recall@K, ranks and gallery size of validation pairs among their own unique images."""
    ranks = image_ranks(
        *_translated(translator, pairs, "validation"), pairs.image_of, image_ids=pairs.image_ids, device=device
    )
    return rank_metrics(ranks, len(pairs.image_ids))


def crossmodal_outcome(
    translator: Translator,
    pairs: CaptionPairs,
    dataset: str,
    texts: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> Outcome:
    """Rank all unique images for every caption, and score the ranks.

    ``texts`` are captions by id, for drill-downs; without them ids are shown. Messages name ``dataset``.
    """
    start = time.perf_counter()
    captions, images = _translated(translator, pairs, dataset)
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
        queries={key: key if texts is None else texts[key] for key in pairs.caption_ids},
        scores=Scores(per_query, rank_metrics(ranks, len(pairs.image_ids)), unjudged_queries=[]),
        items=len(pairs),
        seconds=time.perf_counter() - start,
        device=device,
    )


def _translated(translator: Translator, pairs: CaptionPairs, name: str) -> tuple[Floats, Floats]:
    """Return captions ``(N, D)`` and images ``(M, D)`` in the translator's space, of unit length."""
    with named_inputs(lambda index: f"{name}, caption {pairs.caption_ids[index]!r}"):
        captions = translator.translate(pairs.captions)
    with named_inputs(lambda index: f"{name}, image {pairs.image_ids[index]!r}"):
        return captions, translator.gallery(pairs.images)
