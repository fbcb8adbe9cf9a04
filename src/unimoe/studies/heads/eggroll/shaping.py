"""From fitness to what directions are weighted with."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.errors import UsageError
from unimoe.studies.heads.eggroll.kernels import machine_code, takes_machine_code

Shaping = Literal["rank", "zscore", "combined", "centred", "none"]


def shape(fitness: Tensor, how: Shaping = "rank") -> Tensor:
    """Fitness made comparable from step to step.

    ``rank``      average ranks from -0.5 to 0.5, so that ties weigh the same and nothing but order counts
    ``zscore``    zero mean and unit (population) standard deviation
    ``combined``  ranks of z-scores, which are the ranks: z-scores keep the order
    ``centred``   minus the mean
    ``none``      as it is

    Where all are equal, the result is exactly 0 but for ``none``: nothing was learned, so no step is taken.

    Args:
        fitness: ``(..., N)``; each last dimension is shaped by itself.
        how: one of the above.

    Returns:
        The same shape and dtype.

    Raises:
        UsageError: an unknown shaping.
    """
    if how not in get_args(Shaping):
        raise UsageError(f"shaping {how!r}: unknown; use {', '.join(get_args(Shaping))}")
    if how == "none":
        return fitness
    if how in ("rank", "combined"):
        return average_ranks(fitness) / max(1, fitness.shape[-1] - 1) - 0.5 * (fitness.shape[-1] > 1)
    centred = fitness - fitness.mean(dim=-1, keepdim=True)
    # The mean of equal numbers may differ from them by its rounding, which a division by its own size would blow up.
    centred = torch.where(fitness.amax(dim=-1, keepdim=True) == fitness.amin(dim=-1, keepdim=True), 0.0, centred)
    if how == "centred":
        return centred
    spread = centred.square().mean(dim=-1, keepdim=True).sqrt()
    return centred / torch.where(spread == 0, 1.0, spread)


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 0, ascending; equal values share the mean of their places.

    Args:
        values: ``(..., N)``, not NaN.

    Returns:
        The same shape and dtype.
    """
    if takes_machine_code(values):
        ranks = torch.empty_like(values, memory_format=torch.contiguous_format)
        _rank_rows(values.reshape(-1, values.shape[-1]).numpy(), ranks.view(-1, values.shape[-1]).numpy())
        return ranks
    ordered = values.sort(dim=-1).values
    below = torch.searchsorted(ordered, values.contiguous())
    up_to = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (below + up_to - 1).to(values.dtype) / 2


@machine_code
def _rank_rows(values: NDArray[np.floating], ranks: NDArray[np.floating]) -> None:
    count = values.shape[1]
    for row in range(len(values)):
        order = np.argsort(values[row])
        first = 0
        while first < count:
            last = first
            while last + 1 < count and values[row, order[last + 1]] == values[row, order[first]]:
                last += 1
            for place in range(first, last + 1):
                ranks[row, order[place]] = (first + last) / 2
            first = last + 1
