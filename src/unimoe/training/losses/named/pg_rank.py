"""``pg_rank``: the gradient of a measure itself, by policy gradients of a Plackett-Luce model of rankings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unimoe.config.training import LOSSES, Loss, LossOptions

if TYPE_CHECKING:
    from torch import Tensor

    from unimoe.training.losses.sampling import Chance


def pg_rank(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, chance: Chance) -> Tensor:
    """Return 1 - the measure's mean over rankings drawn from the scores, with the policy gradient as its gradient."""
    import torch

    from unimoe.training.losses.list_measures import ListMeasure
    from unimoe.training.losses.padding import padded
    from unimoe.training.losses.plackett_luce import advantages, drawn_orders, prefix_slopes
    from unimoe.training.losses.sampling import BLOCK, with_gradient

    found, grades, valid = padded(scores, labels)
    fixed = found.detach().masked_fill(~valid, -torch.inf)
    measure = ListMeasure(options.measure, grades, valid)
    slopes, values = torch.zeros_like(fixed), []
    for begin in range(0, len(fixed), BLOCK):
        part = slice(begin, min(begin + BLOCK, len(fixed)))
        orders = drawn_orders(fixed[part], options.directions, chance.generator)
        values.append(measure.of_orders(orders, part))
        weights = advantages(values[-1], options.baseline).to(fixed) / (options.directions * len(fixed))
        slopes[part] = prefix_slopes(fixed[part], orders, weights, measure.cutoff)
    return with_gradient(found, 1 - torch.cat(values).mean().to(found), -slopes)


_GAO = """
@misc{gao2023policy,
  title={Policy-Gradient Training of Language Models for Ranking},
  author={Gao, Ge and Chang, Jonathan D. and Cardie, Claire and Brantley, Kiant{\\'e} and Joachims, Thorsten},
  year={2023},
  eprint={2310.04407},
  archivePrefix={arXiv},
  primaryClass={cs.CL}
}
"""

LOSSES.add("pg_rank", Loss(pg_rank, ("measure", "directions", "baseline"), lambda: _GAO, samples=True))
