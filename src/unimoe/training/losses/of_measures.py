"""Losses that raise a measure of rankings itself; ``sampled.py`` has their estimates of its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from unimoe.config.base import MetricName
from unimoe.training.losses import Chance, Lists, Loss, register_loss

if TYPE_CHECKING:
    from torch import Tensor


Relative = Annotated[float, Field(gt=0, le=1e6)]
"""The noise of scores in units of their spread. Of scores under a million times as much noise float32 keeps nothing."""


class MeasureLoss(Loss):
    """1 - a measure of the list.

    Attributes:
        measure: a list's measure by its own labels, such as ``mrr@10`` or ``ERR@20``.
        directions: of score_es, directions of noise, each with both signs; of pg_rank, rankings drawn of each list.
        baseline: what is subtracted from the measure of a ranking: the mean of the list's other rankings, or ``none``.
            ``group``: the mean of all, and divides by their standard deviation, so that every list counts alike, as in
            GRPO. Pairs of score_es cancel any baseline; ``group`` divides there too.
    """

    samples = True

    measure: MetricName = "ndcg@10"
    directions: Annotated[int, Field(ge=2)] = 64
    baseline: Literal["leave_one_out", "group", "none"] = "leave_one_out"


@register_loss("score_es")
class ScoreES(MeasureLoss):
    """1 - a measure of the list, by evolution strategies on its scores.

    The noise keeps its size: no gradient flows through the spread that it is relative to.

    Attributes:
        sigma: the noise's standard deviation relative to the scores'.
        sigma_end: sigma at the last step, reached by equal factors; null for no change.
    """

    cites = "salimans2017evolution"

    sigma: Relative = 1.0
    sigma_end: Relative | None = None

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        """Return 1 - the measure's mean over noisy scores, with ``score_space_gradient`` as its gradient."""
        import torch

        from unimoe.training.losses.formulas import padded
        from unimoe.training.losses.list_measures import ListMeasure
        from unimoe.training.losses.sampled import group_scale, score_space_gradient, spread_of, with_gradient

        found, grades, valid = padded(scores, labels)
        fixed = found.detach()
        end = self.sigma if self.sigma_end is None else self.sigma_end
        relative = self.sigma * (end / self.sigma) ** chance.progress
        sigma = relative * (spread_of(fixed, valid) or 1.0)  # equal scores have no scale
        noise = torch.randn(self.directions, *found.shape, generator=chance.generator)
        measure = ListMeasure(self.measure, grades, valid)
        slopes, values = score_space_gradient(fixed.masked_fill(~valid, -torch.inf), measure, sigma, noise)
        if self.baseline == "group":
            slopes = slopes / group_scale(values).to(slopes)
        return with_gradient(found, 1 - values.mean().to(found), -slopes)


@register_loss("pg_rank")
class PGRank(MeasureLoss):
    """1 - a measure of the list, by policy gradients of a Plackett-Luce model."""

    cites = "gao2023policy"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        """Return 1 - the measure's mean over drawn rankings, with the policy gradient as its gradient."""
        import torch

        from unimoe.training.losses.formulas import padded
        from unimoe.training.losses.list_measures import ListMeasure
        from unimoe.training.losses.sampled import BLOCK, advantages, drawn_orders, prefix_slopes, with_gradient

        found, grades, valid = padded(scores, labels)
        fixed = found.detach().masked_fill(~valid, -torch.inf)
        measure = ListMeasure(self.measure, grades, valid)
        slopes, values = torch.zeros_like(fixed), []
        for begin in range(0, len(fixed), BLOCK):
            part = slice(begin, min(begin + BLOCK, len(fixed)))
            orders = drawn_orders(fixed[part], self.directions, chance.generator)
            values.append(measure.of_orders(orders, part))
            weights = advantages(values[-1], self.baseline).to(fixed) / (self.directions * len(fixed))
            slopes[part] = prefix_slopes(fixed[part], orders, weights, measure.cutoff)
        return with_gradient(found, 1 - torch.cat(values).mean().to(found), -slopes)
