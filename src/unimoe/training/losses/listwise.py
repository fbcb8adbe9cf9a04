"""A ranking loss by name over lists of scores, with checks and fixes around sentence-transformers' formulas.

What is fixed: a loss that is 0 stays part of the graph (theirs is detached, which stops processes that train
together); scores that are not finite give a loss that is not (LambdaLoss would hide them); labels are sorted stably,
equal ones shuffled at every step where asked; an order that contradicts the labels is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.config.training import LOSSES, LossConfig
from unimoe.core.errors import DataError, InputError, users_code
from unimoe.models.batching import to_device
from unimoe.training.losses.sampled import Chance

_ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh}


class ListwiseLoss(nn.Module):
    """A loss over the scores of several lists of documents.

    Args:
        config: name and options; ``mini_batch_size`` is not read, since the scores exist already.
        generator: shuffles equal labels, and draws what a sampled loss needs; by default torch's, which trainers seed
            and restore.
    """

    def __init__(self, config: LossConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self._loss, self._generator = config, LOSSES[config.name], generator
        self._function, self._activation = self._loss.resolved, _ACTIVATIONS[config.activation]()
        if not isinstance(self._loss.function, str):  # a user's
            self._function = users_code(f"the loss {config.name} raised")(self._function)

    def forward(self, scores: Sequence[Tensor], labels: Sequence[Tensor], progress: float = 0.0) -> Tensor:
        """Return the loss, a scalar that depends on the scores whatever its value.

        Args:
            scores: logits, one tensor ``(n_i,)`` per list, at least one of each.
            labels: the same shapes, larger is better; for ``yes_no`` between 0 and 1.
            progress: of the training, 0 at its first step and 1 at its last, for options that change with it.

        Raises:
            InputError: the index of a list with a label that the loss cannot take, or with labels that rise where
                their order is to be respected.
        """
        scores, labels = [row.float() for row in scores], [row.float() for row in labels]
        sizes, device = [len(row) for row in scores], scores[0].device
        if self._loss.in_order:  # found where the labels are, and taken to the scores at once
            orders = [self._order(index, row) for index, row in enumerate(labels)]
            labels = [row[order] for row, order in zip(labels, orders, strict=True)]
            begins = [sum(sizes[:index]) for index in range(len(sizes))]
            places = torch.cat([order + begin for order, begin in zip(orders, begins, strict=True)])
            scores = list(torch.split(torch.cat(scores)[to_device(places, device)], sizes))
        labels = list(torch.split(to_device(torch.cat(labels), device), sizes))
        chance = (Chance(self._generator, progress),) if self._loss.samples else ()
        found: Tensor = self._function([self._activation(row) for row in scores], labels, self.config, *chance)
        # The added 0 keeps the loss in the graph where every list is of one document or in perfect order, and is NaN
        # where a score is not finite.
        return found + 0.0 * torch.cat(scores).sum()

    def get_config_dict(self) -> dict[str, Any]:
        """Return the name and the options that the loss reads, for model cards."""
        return {"name": self.config.name} | {key: getattr(self.config, key) for key in self._loss.all_options}

    @property
    def citation(self) -> str:
        """Return the BibTeX of the paper the loss comes from."""
        return self._loss.citation().strip()

    def _order(self, index: int, labels: Tensor) -> Tensor:
        """Return the places of a list's documents, the best first."""
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


def are_binary(labels: Iterable[float]) -> bool:
    """Return whether all labels are 0 or 1."""
    return set(labels) <= {0.0, 1.0}


def refuse_binary(name: str, labels: Iterable[float]) -> None:
    """Raise a data error where a loss needs graded labels and there are only 0 and 1."""
    if LOSSES[name].labels == "graded" and are_binary(labels):
        raise DataError(
            f"loss {name} needs graded labels, such as a teacher's scores, and these are 0 and 1; "
            "take yes_no, softmax, plistmle or lambdaloss"
        )
