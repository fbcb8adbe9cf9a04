"""How many documents of a pool are ahead of a relevant one, in every ranking: what its rank hangs on.

Of equal scores the one at the lower index is ahead. So documents before the relevant one count where their score is no
lower, those behind it where theirs is higher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.studies.heads.eggroll.kernels import machine_code

Count = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""``count_ahead``, or what it is compiled to."""

_AT_ONCE = 2**28
"""Bytes of comparisons that are held at once."""


class Judged(NamedTuple):
    """The relevant documents of b pools, and what they are worth.

    Attributes:
        ends: those of pool i are numbers ``ends[i]`` to ``ends[i + 1]``, ``(b + 1,)``.
        places: where they stand in their pools.
        worth: what each earns at most.
        table: the share of it by the number of documents ahead, of at least P entries.
        valid: ``(b, P)``, False for documents that never count; ``(0, 0)`` where all do.
        first_only: the best of a pool's documents counts, in place of their sum.
    """

    ends: NDArray[np.int64]
    places: NDArray[np.int64]
    worth: NDArray[np.float64]
    table: NDArray[np.float64]
    valid: NDArray[np.bool_]
    first_only: bool


@machine_code
def earned_by_pools(scores: NDArray[np.floating], judged: Judged) -> NDArray[np.float64]:
    """What the relevant documents of every ranking earn, on a CPU.

    Args:
        scores: ``(b, P, N)``.
        judged: of these b pools.

    Returns:
        ``(b, N)``.
    """
    pools, _, rankings = scores.shape
    found, ahead = np.zeros((pools, rankings)), np.empty(rankings, np.int32)
    for pool in range(pools):
        earned_by_pool(pool, scores[pool], judged, ahead, found[pool])
    return found


@machine_code
def earned_by_pool(
    pool: int, scores: NDArray[np.floating], judged: Judged, ahead: NDArray[np.int32], found: NDArray[np.float64]
) -> None:
    """The same for pool number ``pool``, whose scores are ``(P, N)``, added to ``found``; ``ahead`` is scratch."""
    size, rankings = scores.shape
    for number in range(judged.ends[pool], judged.ends[pool + 1]):
        place, worth = judged.places[number], judged.worth[number]
        own = scores[place]
        ahead[:] = 0
        for other in range(size):
            if other == place or (judged.valid.size and not judged.valid[pool, other]):
                continue
            theirs = scores[other]
            if other < place:
                for j in range(rankings):
                    ahead[j] += theirs[j] >= own[j]
            else:
                for j in range(rankings):
                    ahead[j] += theirs[j] > own[j]
        for j in range(rankings):
            earned = judged.table[ahead[j]] * worth
            found[j] = max(found[j], earned) if judged.first_only else found[j] + earned


def count_in_parts(
    count: Count, scores: Tensor, owner: Tensor, place: Tensor, valid: Tensor | None, *, whole: bool
) -> Tensor:
    """The counts as tensors on any device: as many relevant documents at a time as memory has room for, or all.

    Args:
        count: ``count_ahead``, or what it is compiled to.
        scores: ``(b, P, N)``.
        owner: which pool each of T relevant documents belongs to, ``(T,)``.
        place: where it stands there, ``(T,)``.
        valid: ``(b, P)`` bool; None where all documents count.
        whole: take all at once; what is compiled holds no comparisons.

    Returns:
        ``(T, N)`` whole numbers.
    """
    most = len(owner) if whole else max(1, _AT_ONCE // (scores[0].numel() * scores.element_size()))
    parts = zip(torch.split(owner, most), torch.split(place, most), strict=True)
    return torch.cat([count(scores, owners, places, valid) for owners, places in parts])


def count_ahead(scores: Tensor, owner: Tensor, place: Tensor, valid: Tensor | None) -> Tensor:
    """How many documents of pool ``owner[t]`` are ahead of the one at ``place[t]``, in the dtype of the scores."""
    pools, relevant = scores[owner], scores[owner, place].unsqueeze(1)
    is_before = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1) < place.view(-1, 1, 1)
    is_ahead = torch.where(is_before, pools >= relevant, pools > relevant)
    if valid is not None:
        is_ahead = is_ahead & valid[owner].unsqueeze(2)
    return is_ahead.to(scores.dtype).sum(dim=1)
