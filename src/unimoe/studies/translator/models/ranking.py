"""Exact ranks of captions' images among all images of a gallery, computed a block of scores at a time.

A score is the float64 product of two vectors, rounded to float32, as trec_eval compares scores; equal scores rank by
image id, descending, as in trec_eval. Blocks of scores come from a float32 product; scores within its rounding error of
the true image's are computed again in float64. So ranks depend neither on blocks nor on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.core.errors import DataError, InputError
from unimoe.studies.translator.data.caption_pairs import Floats, Rows

_CUTOFFS = (1, 5, 10)
"""K of Recall@K."""

_BLOCK = 1024
_GATHERED = 2**22
"""Numbers of each side gathered at once for exact products: 16 MiB in float32."""


def image_ranks(
    translated: Floats,
    gallery: Floats,
    image_of: NDArray[np.integer[Any]],
    *,
    image_ids: Sequence[str] | None = None,
    block: int = _BLOCK,
    device: torch.device | str = "cpu",
) -> Rows:
    """Return the rank of each caption's image among all images by inner product, from 1, ``(n,)`` int64.

    Args:
        translated: ``(n, D)`` captions in the common space; of unit length to rank by the cosine.
        gallery: ``(m, D)`` images, each once.
        image_of: ``(n,)`` row of each caption's image.
        image_ids: by which equal scores rank, descending; without them the later row goes first.
        block: captions, and images, of one block of scores; memory beyond the arguments is that of one block.
        device: where blocks are computed.

    Raises:
        DataError: shapes do not fit, or a row is outside the gallery.
        InputError: a vector is not finite; carries its index.
    """
    targets = np.asarray(image_of, dtype=np.int64)
    _check(translated, gallery, targets, image_ids)
    device = torch.device(device)
    places = torch.from_numpy(_places(image_ids, len(gallery)))
    lengths = [np.sqrt(np.einsum("nd,nd->n", side, side, dtype=np.float64)) for side in (translated, gallery)]
    for norms, what in zip(lengths, ("caption", "image"), strict=True):
        if not np.isfinite(norms).all():
            raise InputError(int((~np.isfinite(norms)).argmax()), f"the vector of this {what} is not finite")
    error = np.float32(2 * (gallery.shape[1] + 2) * 2.0**-24 * lengths[1].max())
    ranks = np.empty(len(translated), dtype=np.int64)
    images = torch.from_numpy(np.ascontiguousarray(gallery)).to(device)
    for rows in _slices(len(translated), block):
        queries, wanted = np.ascontiguousarray(translated[rows]), targets[rows]
        true = _exact(queries, gallery, np.arange(len(queries)), wanted)
        slack = (error * lengths[0][rows]).astype(np.float32)
        low, high = (torch.from_numpy(true + sign * slack).to(device)[:, None] for sign in (-1, 1))
        on_device = torch.from_numpy(queries).to(device)
        better = torch.zeros(len(queries), dtype=torch.int64, device=device)
        for columns in _slices(len(gallery), block):
            scores = on_device @ images[columns].T
            above = scores > high
            better += above.sum(1)
            close = ((scores >= low) ^ above).nonzero().cpu()
            better += _better_of(close, columns.start, queries, gallery, true, places, wanted).to(device)
        ranks[rows] = 1 + better.cpu().numpy()
    return ranks


def rank_values(ranks: Rows) -> dict[str, NDArray[np.float64]]:
    """Return the value of each rank by metric: ``mrr`` (uncut), ``recall@1``, ``recall@5``, ``recall@10``, ``rank``."""
    values = {"mrr": 1.0 / ranks} | {f"recall@{k}": (ranks <= k).astype(np.float64) for k in _CUTOFFS}
    return values | {"rank": ranks.astype(np.float64)}


def rank_metrics(ranks: Rows, gallery_size: int) -> dict[str, float]:
    """Return means of ``rank_values``, ``median_rank``, ``p75_rank``, and ``gallery_size``, on which all depend.

    Raises:
        DataError: there are no ranks.
    """
    if not len(ranks):
        raise DataError("no captions were ranked, so there is no mean; give some")
    means = {name: float(values.mean()) for name, values in rank_values(ranks).items()}
    median, upper = np.percentile(ranks, [50, 75])
    return means | {"median_rank": float(median), "p75_rank": float(upper), "gallery_size": float(gallery_size)}


def _better_of(
    close: Tensor, offset: int, queries: Floats, gallery: Floats, true: Floats, places: Tensor, wanted: Rows
) -> Tensor:
    """Count, by caption, the close (caption, image) pairs that rank before the caption's own image."""
    rows, columns = close[:, 0].numpy(), close[:, 1].numpy() + offset
    scores, own = _exact(queries, gallery, rows, columns), true[rows]
    order = places.numpy()
    first = (scores > own) | ((scores == own) & (order[columns] > order[wanted[rows]]))
    return torch.from_numpy(np.bincount(rows[first], minlength=len(queries)))


def _exact(queries: Floats, gallery: Floats, rows: Rows, columns: Rows) -> Floats:
    """Return float64 products of pairs of rows, rounded to float32."""
    scores = np.empty(len(rows), dtype=np.float32)
    for part in _slices(len(rows), max(1, _GATHERED // gallery.shape[1])):
        pairs = queries[rows[part]], gallery[columns[part]]
        scores[part] = np.einsum("nd,nd->n", *pairs, dtype=np.float64)
    return scores


def _places(image_ids: Sequence[str] | None, count: int) -> Rows:
    """Return the place of every image in the ascending order of ids."""
    places = np.arange(count, dtype=np.int64)
    if image_ids is not None:
        places[sorted(range(count), key=image_ids.__getitem__)] = np.arange(count)
    return places


def _check(translated: Floats, gallery: Floats, targets: Rows, image_ids: Sequence[str] | None) -> None:
    if translated.ndim != 2 or gallery.ndim != 2 or translated.shape[1] != gallery.shape[1] or not len(gallery):
        raise DataError(
            f"captions of shape {translated.shape} and images of shape {gallery.shape} share no space; "
            "translate the captions first"
        )
    if targets.shape != (len(translated),) or (len(targets) and not 0 <= targets.min() <= targets.max() < len(gallery)):
        raise DataError(f"{len(translated):,} captions need as many rows of the {len(gallery):,} images, from 0")
    if image_ids is not None and len(image_ids) != len(gallery):
        raise DataError(f"{len(image_ids):,} image ids for {len(gallery):,} images")


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))
