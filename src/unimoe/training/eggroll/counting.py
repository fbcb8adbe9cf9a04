"""How many documents of a pool are ahead of a relevant one, in every ranking: what its rank hangs on.

Of equal scores the one at the lower index is ahead. So documents before the relevant one count where their score is no
lower, those behind it where theirs is higher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Count = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""``count_ahead``, or what it is compiled to."""

_AT_ONCE = 2**28
"""Bytes of comparisons that are held at once."""


class CountOnCPU:
    """Counts one relevant document after the other, in comparisons that write single bytes.

    numpy's are several times faster than torch's there, and a comparison for each side of the relevant document reads
    every score once, where whole pools would be compared twice.
    """

    def __init__(self) -> None:
        self._flags = np.empty(0, dtype=np.bool_)

    def __call__(self, scores: Tensor, places: Sequence[Sequence[int]], valid: Tensor | None) -> NDArray[np.integer]:
        """The counts.

        Args:
            scores: ``(b, P, N)``, float32 or float64.
            places: where each of b pools has its relevant documents; T in all.
            valid: ``(b, P)`` bool, False for documents that never count; None where all do.

        Returns:
            ``(T, N)`` integers, the relevant documents of the first pool first.
        """
        _, size, rankings = scores.shape
        kept = None if valid is None else valid.unsqueeze(2).numpy()
        narrow = np.dtype(np.uint8 if size < 256 else np.int32)
        counts = np.empty((sum(map(len, places)), rankings), dtype=narrow)
        done = 0
        for number, (pool, of_pool) in enumerate(zip(scores.detach().numpy(), places, strict=True)):
            if not of_pool:
                continue
            flags = self._room(len(of_pool), size, rankings)
            for flag, place in zip(flags, of_pool, strict=True):
                relevant = pool[place]
                np.greater_equal(pool[:place], relevant, out=flag[:place])
                np.greater(pool[place:], relevant, out=flag[place:])
            if kept is not None:
                flags &= kept[number]
            np.add.reduce(flags.view(np.uint8), axis=1, dtype=narrow, out=counts[done : done + len(of_pool)])
            done += len(of_pool)
        return counts

    def _room(self, *shape: int) -> NDArray[np.bool_]:
        need = int(np.prod(shape))
        if len(self._flags) < need:
            self._flags = np.empty(need, dtype=np.bool_)
        return self._flags[:need].reshape(shape)


def count_in_parts(
    count: Count, scores: Tensor, places: Sequence[Sequence[int]], valid: Tensor | None, *, whole: bool
) -> Tensor:
    """The same by tensors on any device: as many relevant documents at a time as memory has room for, or all.

    Args:
        count: ``count_ahead``, or what it is compiled to.
        scores: ``(b, P, N)``.
        places: where each of b pools has its relevant documents; T in all.
        valid: ``(b, P)`` bool; None where all documents count.
        whole: take all at once; what is compiled holds no comparisons.

    Returns:
        ``(T, N)`` whole numbers.
    """
    pairs = [(pool, place) for pool, of_pool in enumerate(places) for place in of_pool]
    owners, found = torch.tensor(pairs, device=scores.device).view(-1, 2).T.contiguous()
    most = len(pairs) if whole else max(1, _AT_ONCE // (scores[0].numel() * scores.element_size()))
    parts = zip(owners.split(max(1, most)), found.split(max(1, most)), strict=True)
    return torch.cat([count(scores, owner, place, valid) for owner, place in parts])


def count_ahead(scores: Tensor, owner: Tensor, place: Tensor, valid: Tensor | None) -> Tensor:
    """How many documents of pool ``owner[t]`` are ahead of the one at ``place[t]``, in the dtype of the scores."""
    pools, relevant = scores[owner], scores[owner, place].unsqueeze(1)
    is_before = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1) < place.view(-1, 1, 1)
    is_ahead = torch.where(is_before, pools >= relevant, pools > relevant)
    if valid is not None:
        is_ahead = is_ahead & valid[owner].unsqueeze(2)
    return is_ahead.to(scores.dtype).sum(dim=1)
