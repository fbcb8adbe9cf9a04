"""A ranking loss by name over lists of scores, with checks and fixes around sentence-transformers' formulas.

What is fixed: a loss that is 0 stays part of the graph (theirs is detached, which stops processes that train
together); scores that are not finite give a loss that is not (LambdaLoss would hide them); labels are sorted stably,
equal ones shuffled at every step where asked; an order that contradicts the labels is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.config.losses import Loss
from unimoe.core.errors import DataError, guarded
from unimoe.models.batching import to_device
from unimoe.training.losses import Chance

_ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh}


class ListwiseLoss(nn.Module):
    """A loss over the scores of several lists of documents.

    Args:
        config: the loss with its keys.
        generator: shuffles equal labels, and draws what a sampled loss needs; by default torch's, which trainers seed
            and restore.
    """

    def __init__(self, config: Loss, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self._generator = config, generator
        self._computed = guarded(f"the loss {config.name} raised", config)
        self._activation = _ACTIVATIONS[config.activation]()

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
        given = [self.config.order(index, row, self._generator) for index, row in enumerate(labels)]
        if orders := [order for order in given if order is not None]:  # found where the labels are, and taken at once
            labels = [row[order] for row, order in zip(labels, orders, strict=True)]
            begins = [sum(sizes[:index]) for index in range(len(sizes))]
            places = torch.cat([order + begin for order, begin in zip(orders, begins, strict=True)])
            scores = list(torch.split(torch.cat(scores)[to_device(places, device)], sizes))
        labels = list(torch.split(to_device(torch.cat(labels), device), sizes))
        chance = Chance(self._generator, progress)
        found = self._computed([self._activation(row) for row in scores], labels, chance)
        if not isinstance(found, Tensor) or found.dim():
            raise DataError(f"the loss {self.config.name} has to return a tensor without dimensions; fix it")
        # The added 0 keeps the loss in the graph where every list is of one document or in perfect order, and is NaN
        # where a score is not finite.
        return found + 0.0 * torch.cat(scores).sum()

    def get_config_dict(self) -> dict[str, Any]:
        """Return the name and the keys of the loss, for model cards."""
        return self.config.model_dump()

    @property
    def citation(self) -> str:
        """Return the BibTeX of the loss's source: stated, by key of ``papers.bib``, or as a class of theirs cites."""
        from sentence_transformers.cross_encoder import losses

        source = self.config.cites
        if kind := vars(losses).get(source):
            return str(vars(kind)["citation"].fget(None)).strip()  # a loss itself would need a model
        return bibtex(source)


def bibtex(key: str) -> str:
    """Return the entry of a paper in ``papers.bib``, or the text itself where it is no key of one."""
    entries = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8").split("\n\n")
    return next((entry.strip() for entry in entries if f"{{{key}," in entry), key)


def are_binary(labels: Iterable[float]) -> bool:
    """Return whether all labels are 0 or 1."""
    return set(labels) <= {0.0, 1.0}


def refuse_binary(loss: Loss, labels: Iterable[float]) -> None:
    """Raise a data error where a loss needs graded labels and there are only 0 and 1."""
    if loss.labels == "graded" and are_binary(labels):
        raise DataError(
            f"loss {loss.name} needs graded labels, such as a teacher's scores, and these are 0 and 1; "
            "take yes_no, softmax, plistmle or lambdaloss"
        )
