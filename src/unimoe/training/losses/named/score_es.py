"""``score_es``: the gradient of a measure itself, by evolution strategies in the space of a list's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unimoe.config.training import LOSSES, Loss, LossOptions

if TYPE_CHECKING:
    from torch import Tensor

    from unimoe.training.losses.sampling import Chance


def score_es(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, chance: Chance) -> Tensor:
    """Return 1 - the measure's mean over noisy scores, with the estimate of ``score_space_gradient`` as its gradient.

    The noise keeps its size: no gradient flows through the spread that it is relative to.
    """
    import torch

    from unimoe.training.losses.list_measures import ListMeasure
    from unimoe.training.losses.padding import padded
    from unimoe.training.losses.sampling import group_scale, spread_of, with_gradient
    from unimoe.training.losses.score_space import score_space_gradient

    found, grades, valid = padded(scores, labels)
    fixed = found.detach()
    sigma = sigma_at(options, chance.progress) * (spread_of(fixed, valid) or 1.0)  # equal scores have no scale
    noise = torch.randn(options.directions, *found.shape, generator=chance.generator)
    measure = ListMeasure(options.measure, grades, valid)
    slopes, values = score_space_gradient(fixed.masked_fill(~valid, -torch.inf), measure, sigma, noise)
    if options.baseline == "group":
        slopes = slopes / group_scale(values).to(slopes)
    return with_gradient(found, 1 - values.mean().to(found), -slopes)


def sigma_at(options: LossOptions, progress: float) -> float:
    """Return the relative sigma at some progress of the training, between 0 and 1."""
    end = options.sigma if options.sigma_end is None else options.sigma_end
    return float(options.sigma * (end / options.sigma) ** progress)


_SALIMANS = """
@misc{salimans2017evolution,
  title={Evolution Strategies as a Scalable Alternative to Reinforcement Learning},
  author={Salimans, Tim and Ho, Jonathan and Chen, Xi and Sidor, Szymon and Sutskever, Ilya},
  year={2017},
  eprint={1703.03864},
  archivePrefix={arXiv},
  primaryClass={stat.ML}
}
"""

LOSSES.add(
    "score_es",
    Loss(score_es, ("measure", "directions", "sigma", "sigma_end", "baseline"), lambda: _SALIMANS, samples=True),
)
