"""The losses that sentence-transformers has not, or not for lists of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unimoe.config.training import LOSSES, Loss, LossOptions
from unimoe.core.errors import InputError
from unimoe.training.losses.named.sentence_transformers import cited

if TYPE_CHECKING:
    from torch import Tensor


def yes_no(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return binary cross-entropy, the mean over all documents."""
    import torch

    from unimoe.training.losses.pointwise import yes_no_loss

    for index, row in enumerate(labels):
        if row.min() < 0 or row.max() > 1:
            raise InputError(index, "the loss yes_no takes labels between 0 and 1; scale the grades, or take another")
    return yes_no_loss(torch.cat(list(scores)), torch.cat(list(labels))).mean()


def softmax(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return the cross-entropy of picking a best document among those that are worse, the mean over lists.

    Where several have the highest label, each is set against the worse ones, and their mean is the list's loss.
    """
    import torch

    losses = []
    for row, given in zip(scores, labels, strict=True):
        best = given == given.max()
        worse = row.masked_fill(best, -torch.inf).logsumexp(0)
        losses.append((torch.logaddexp(row[best], worse) - row[best]).mean())
    return torch.stack(losses).mean()


def margin_mse(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return the mean squared error of the margins between a list's best document and each other one."""
    import torch
    from torch.nn import functional

    margins, wanted = [], []
    for row, given in zip(scores, labels, strict=True):
        order = given.argsort(descending=True, stable=True)
        margins.append(row[order[:1]] - row[order[1:]])
        wanted.append(given[order[:1]] - given[order[1:]])
    found = torch.cat(margins)
    return functional.mse_loss(found, torch.cat(wanted)) if len(found) else found.sum()


def infonce(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return InfoNCE of every positive (label above 0) against the negatives, the mean over lists that have one."""
    from unimoe.training.losses.contrastive import nt_xent
    from unimoe.training.losses.padding import padded

    found, grades, valid = padded(scores, labels)
    positive = (grades > 0) & valid
    return _mean_over_lists(nt_xent(found, positive, valid), positive)


def supcon(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return InfoNCE with several positives (labels above 0) in one softmax, the mean over lists that have one."""
    import torch

    from unimoe.training.losses.padding import padded

    found, grades, valid = padded(scores, labels)
    positive = (grades > 0) & valid
    log_shares = found.masked_fill(~valid, -torch.inf).log_softmax(1).masked_fill(~positive, 0.0)
    return _mean_over_lists(-log_shares.sum(1) / positive.sum(1).clamp(min=1), positive)


def approx_ndcg(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Return 1 - ApproxNDCG: ranks by sigmoids of differences, linear gain, no cutoff; the mean over lists.

    A label below 0 counts as 0, as in nDCG; lists without a label above 0 add nothing.
    """
    import torch

    from unimoe.training.losses.padding import padded

    found, grades, valid = padded(scores, labels)
    differences = (found.unsqueeze(1) - found.unsqueeze(2)) / options.temperature  # [b, i, j]: s_j - s_i
    pairs = differences.sigmoid() * valid.unsqueeze(1)
    ranks = 1 + pairs.sum(2) - 0.5  # without the document itself, whose sigmoid is a half
    gains = grades.clamp(min=0)
    value = (gains / torch.log2(1 + ranks)).sum(1)
    best = gains.sort(1, descending=True).values
    places = torch.arange(2, best.shape[1] + 2, device=gains.device, dtype=gains.dtype)
    ideal = (best / torch.log2(places)).sum(1)
    return _mean_over_lists(1 - value / ideal.clamp(min=1e-9), gains > 0)


def _mean_over_lists(losses: Tensor, positive: Tensor) -> Tensor:
    has = positive.any(1)
    return (losses * has).sum() / has.sum().clamp(min=1)


_YES_NO = """
@misc{nogueira2019passage,
  title={Passage Re-ranking with BERT},
  author={Nogueira, Rodrigo and Cho, Kyunghyun},
  year={2019},
  eprint={1901.04085},
  archivePrefix={arXiv},
  primaryClass={cs.IR}
}
"""
_INFONCE = """
@misc{oord2018representation,
  title={Representation Learning with Contrastive Predictive Coding},
  author={van den Oord, Aaron and Li, Yazhe and Vinyals, Oriol},
  year={2018},
  eprint={1807.03748},
  archivePrefix={arXiv},
  primaryClass={cs.LG}
}
"""
_SUPCON = """
@inproceedings{khosla2020supervised,
  title={Supervised Contrastive Learning},
  author={Khosla, Prannay and Teterwak, Piotr and Wang, Chen and Sarna, Aaron and Tian, Yonglong and Isola, Phillip and
    Maschinot, Aaron and Liu, Ce and Krishnan, Dilip},
  booktitle={Advances in Neural Information Processing Systems 33},
  year={2020}
}
"""
_APPROX_NDCG = """
@article{qin2010general,
  title={A general approximation framework for direct optimization of information retrieval measures},
  author={Qin, Tao and Liu, Tie-Yan and Li, Hang},
  journal={Information Retrieval},
  volume={13},
  pages={375--397},
  year={2010}
}
"""

LOSSES.add(
    "yes_no",
    Loss(yes_no, (), lambda: _YES_NO, labels="probabilities", takes_activation=False, mean_of="documents"),
)
LOSSES.add("softmax", Loss(softmax, (), cited("ListNetLoss"), mean_of="lists"))
LOSSES.add("marginmse", Loss(margin_mse, (), cited("MarginMSELoss"), labels="graded"))
LOSSES.add("infonce", Loss(infonce, (), lambda: _INFONCE))
LOSSES.add("supcon", Loss(supcon, (), lambda: _SUPCON))
LOSSES.add("approxndcg", Loss(approx_ndcg, ("temperature",), lambda: _APPROX_NDCG))
