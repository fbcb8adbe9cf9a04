"""A ranking loss by name over lists of scores: sentence-transformers' where it is right, mended where it is not.

What is mended: a loss that is 0 stays part of the graph (theirs is detached, which stops processes that train
together); scores that are not finite give a loss that is not (LambdaLoss would hide them); labels are sorted stably,
equal ones shuffled at every step where asked; an order that contradicts the labels is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.cross_encoder import losses as theirs
from torch import Tensor, nn
from torch.nn import functional

from unimoe.config.losses import LossConfig
from unimoe.errors import DataError, InputError
from unimoe.losses.pointwise import yes_no_loss
from unimoe.losses.upstream import UpstreamLoss, activation
from unimoe.losses.weights import DiscountFn

_OURS = ("yes_no", "softmax", "marginmse")
_IN_ORDER = ("listmle", "plistmle")


class ListwiseLoss(nn.Module):
    """A loss over the scores of several lists of documents.

    Args:
        config: name and options; ``mini_batch_size`` is not read, the scores are there.
        generator: shuffles equal labels; by default torch's own, which trainers seed and restore.
        discount: for PListMLE, weights by a function of ranks instead of by name.
    """

    def __init__(
        self, config: LossConfig, *, generator: torch.Generator | None = None, discount: DiscountFn | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self._generator = generator
        self._upstream = None if config.name in _OURS else UpstreamLoss(config, discount)
        self._activation = activation(config)
        self._custom = discount is not None

    def forward(self, scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        """The loss, a scalar that depends on the scores whatever its value.

        Args:
            scores: logits, one tensor ``(n_i,)`` per list.
            labels: likewise, larger is better; for ``yes_no`` between 0 and 1.

        Raises:
            DataError: no list.
            InputError: the index of a list that has no document, as many labels as not documents, a label that is not
                finite or that the loss cannot take, or labels that rise where their order is to be respected.
        """
        _refuse_malformed(scores, labels)
        scores = [row.float() for row in scores]
        labels = [row.to(scores[0].device).float() for row in labels]
        if self.config.name in _IN_ORDER:
            orders = [self._order(index, row) for index, row in enumerate(labels)]
            scores = [row[order] for row, order in zip(scores, orders, strict=True)]
            labels = [row[order] for row, order in zip(labels, orders, strict=True)]
        # The added 0 keeps the loss in the graph where every list is of one document or in perfect order, and is NaN
        # where a score is not finite.
        return self._loss(scores, labels) + 0.0 * torch.cat(scores).sum()

    def get_config_dict(self) -> dict[str, Any]:
        """Name and options as they are, for model cards."""
        config = {"name": self.config.name, **self.config.used_by(self.config.name)}
        if self._custom:
            config["rank_discount"] = "custom"
        return config

    @property
    def citation(self) -> str:
        """BibTeX of the paper the loss comes from."""
        return _CITATIONS[self.config.name].strip() if self.config.name in _OURS else self._their_citation

    @property
    def _their_citation(self) -> str:
        assert self._upstream is not None  # noqa: S101 - for the type checker
        return str(self._upstream.module.citation).strip()

    def _loss(self, scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        if self._upstream is not None:
            return self._upstream(scores, labels)
        if self.config.name == "yes_no":
            return _binary(scores, labels)
        active = [self._activation(row) for row in scores]
        return _softmax(active, labels) if self.config.name == "softmax" else _margin(active, labels)

    def _order(self, index: int, labels: Tensor) -> Tensor:
        """Where the documents of a list go, the best first."""
        if self.config.respect_input_order:
            if (labels[1:] > labels[:-1]).any():
                raise InputError(
                    index,
                    "labels rise along the list, and respect_input_order teaches its order; sort the documents by "
                    "label, or set respect_input_order: false",
                )
            return torch.arange(len(labels), device=labels.device)
        if self.config.ties == "keep":
            return labels.argsort(descending=True, stable=True)
        shuffled = torch.randperm(len(labels), generator=self._generator).to(labels.device)
        return shuffled[labels[shuffled].argsort(descending=True, stable=True)]


def listwise_loss(
    config: LossConfig, *, generator: torch.Generator | None = None, discount: DiscountFn | None = None
) -> ListwiseLoss:
    """The loss of a configuration: a callable from lists of scores and lists of labels to a scalar.

    Args:
        config: name and options.
        generator: shuffles equal labels where ``ties`` is ``shuffle``; by default torch's own.
        discount: for ``plistmle``, a function from ranks to weights instead of a name.
    """
    return ListwiseLoss(config, generator=generator, discount=discount)


def loss_card(config: LossConfig) -> dict[str, Any]:
    """What a model card says of a loss: ``{"config": name and options, "citation": BibTeX}``."""
    loss = ListwiseLoss(config)
    return {"config": loss.get_config_dict(), "citation": loss.citation}


def _refuse_malformed(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
    if not scores:
        raise DataError("an empty batch: a ranking loss needs at least one list of documents")
    if len(scores) != len(labels):
        raise DataError(f"{len(scores)} lists of scores, {len(labels)} lists of labels; give as many")
    for index, (row, given) in enumerate(zip(scores, labels, strict=True)):
        if row.dim() != 1 or not len(row):
            raise InputError(index, "a list without documents; leave it out")
        if row.shape != given.shape:
            raise InputError(index, f"{len(row)} documents, {len(given)} labels; give one label per document")
        if not given.isfinite().all():
            raise InputError(index, "a label is not finite; labels are numbers, larger is better")


def _binary(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Binary cross-entropy, the mean over all documents."""
    for index, row in enumerate(labels):
        if row.min() < 0 or row.max() > 1:
            raise InputError(index, "the loss yes_no takes labels between 0 and 1; scale the grades, or take another")
    return yes_no_loss(torch.cat(list(scores)), torch.cat(list(labels))).mean()


def _softmax(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of picking a best document among those that are worse, the mean over lists.

    Where several have the highest label, each is set against the worse ones, and their mean is the list's loss.
    """
    losses = []
    for row, given in zip(scores, labels, strict=True):
        best = given == given.max()
        worse = row.masked_fill(best, -torch.inf).logsumexp(0)
        losses.append((torch.logaddexp(row[best], worse) - row[best]).mean())
    return torch.stack(losses).mean()


def _margin(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Mean squared error of the margins between a list's best document and each other one, over all of these."""
    margins, wanted = [], []
    for row, given in zip(scores, labels, strict=True):
        first, *rest = given.argsort(descending=True, stable=True).tolist()
        margins.append(row[first] - row[rest])
        wanted.append(given[first] - given[rest])
    found = torch.cat(margins)
    return functional.mse_loss(found, torch.cat(wanted)) if len(found) else found.sum()


def _citation_of(loss: type[nn.Module]) -> str:
    """The citation of a class of theirs that cannot be made without a model; the text does not depend on it."""
    return str(vars(loss)["citation"].fget(None))


_CITATIONS = {
    "yes_no": """
@misc{nogueira2019passage,
  title={Passage Re-ranking with BERT},
  author={Nogueira, Rodrigo and Cho, Kyunghyun},
  year={2019},
  eprint={1901.04085},
  archivePrefix={arXiv},
  primaryClass={cs.IR}
}
""",
    "softmax": _citation_of(theirs.ListNetLoss),
    "marginmse": _citation_of(theirs.MarginMSELoss),
}
