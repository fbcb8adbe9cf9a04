"""The losses that sentence-transformers has not, or not for lists of any length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from unimoe.config.base import Positive
from unimoe.core.errors import InputError
from unimoe.training.losses import Chance, Lists, Loss, register_loss

if TYPE_CHECKING:
    from torch import Tensor


@register_loss("yes_no")
class YesNo(Loss):
    """Binary cross-entropy of each pair, the mean over all documents.

    Attributes:
        activation: none, since the logits are those of the answers.
    """

    cites, labels, mean_of = "nogueira2019passage", "probabilities", "documents"

    activation: Literal["Identity"] = "Identity"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        import torch

        from unimoe.training.losses.formulas import yes_no_loss

        for index, row in enumerate(labels):
            if row.min() < 0 or row.max() > 1:
                raise InputError(
                    index, "the loss yes_no takes labels between 0 and 1; scale the grades, or take another"
                )
        return yes_no_loss(torch.cat(list(scores)), torch.cat(list(labels))).mean()


@register_loss("softmax")
class Softmax(Loss):
    """Cross-entropy of picking a best document among those that are worse, the mean over lists.

    Where several have the highest label, each is set against the worse ones, and their mean is the list's loss.

    Source: the listwise softmax of ListNet's top-one model (Cao et al. 2007) with one relevant document.
    """

    cites, mean_of = "ListNetLoss", "lists"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        from unimoe.training.losses.formulas import nt_xent, padded

        found, grades, valid = padded(scores, labels)
        best = valid & (grades == grades.masked_fill(~valid, -math.inf).amax(1, keepdim=True))
        return nt_xent(found, best, valid).mean()


@register_loss("marginmse")
class MarginMSE(Loss):
    """Mean squared error of the margins between a list's best document and each other one."""

    cites, labels = "MarginMSELoss", "graded"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        import torch

        margins, wanted = [], []
        for row, given in zip(scores, labels, strict=True):
            order = given.argsort(descending=True, stable=True)
            margins.append(row[order[:1]] - row[order[1:]])
            wanted.append(given[order[:1]] - given[order[1:]])
        found = torch.cat(margins)
        return torch.nn.functional.mse_loss(found, torch.cat(wanted)) if len(found) else found.sum()


@register_loss("infonce")
class InfoNCE(Loss):
    """InfoNCE of every positive (label above 0) against the negatives, the mean over lists that have one."""

    cites = "oord2018representation"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        from unimoe.training.losses.formulas import mean_over_lists, nt_xent, padded

        found, grades, valid = padded(scores, labels)
        positive = (grades > 0) & valid
        return mean_over_lists(nt_xent(found, positive, valid), positive)


@register_loss("supcon")
class SupCon(Loss):
    """InfoNCE with several positives (labels above 0) in one softmax, the mean over lists that have one."""

    cites = "khosla2020supervised"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        from unimoe.training.losses.formulas import mean_over_lists, padded

        found, grades, valid = padded(scores, labels)
        positive = (grades > 0) & valid
        log_shares = found.masked_fill(~valid, -math.inf).log_softmax(1).masked_fill(~positive, 0.0)
        return mean_over_lists(-log_shares.sum(1) / positive.sum(1).clamp(min=1), positive)


@register_loss("approxndcg")
class ApproxNDCG(Loss):
    """1 - nDCG of approximate ranks, by sigmoids of differences; linear gain, no cutoff; the mean over lists.

    A label below 0 counts as 0, as in nDCG; lists without a label above 0 add nothing.

    Attributes:
        temperature: divides the differences of scores.
    """

    cites = "qin2010general"

    temperature: Positive = 0.5

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        import torch

        from unimoe.training.losses.formulas import mean_over_lists, padded

        found, grades, valid = padded(scores, labels)
        differences = (found.unsqueeze(1) - found.unsqueeze(2)) / self.temperature  # [b, i, j]: s_j - s_i
        pairs = differences.sigmoid() * valid.unsqueeze(1)
        ranks = 1 + pairs.sum(2) - 0.5  # without the document itself: its sigmoid is a half
        gains = grades.clamp(min=0)
        value = (gains / torch.log2(1 + ranks)).sum(1)
        best = gains.sort(1, descending=True).values
        places = torch.arange(2, best.shape[1] + 2, device=gains.device, dtype=gains.dtype)
        ideal = (best / torch.log2(places)).sum(1)
        return mean_over_lists(1 - value / ideal.clamp(min=1e-9), gains > 0)
