"""The losses of sentence-transformers: listwise and pairwise. The library takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from unimoe.config.training import LOSSES, Loss, LossOptions

if TYPE_CHECKING:
    from torch import Tensor


def _plistmle(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, **custom: Any) -> Tensor:
    from unimoe.training.losses.from_sentence_transformers import plistmle

    return plistmle(scores, labels, options, **custom)


def _listnet(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    from unimoe.training.losses.from_sentence_transformers import upstream_loss

    return upstream_loss("ListNetLoss", scores, [row / options.label_temperature for row in labels], options)


def _computed_by(name: str, *arguments: str) -> Callable[..., Tensor]:
    """Return a loss that a class of theirs computes, which takes some of the options as arguments."""

    def function(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
        from unimoe.training.losses.from_sentence_transformers import upstream_loss

        given = {key: getattr(options, key) for key in arguments}
        return upstream_loss(name, scores, labels, options, **given)

    return function


def cited(name: str) -> Callable[[], str]:
    """Return what gives the BibTeX of a class of theirs."""

    def citation() -> str:
        from unimoe.training.losses.from_sentence_transformers import citation_of

        return citation_of(name)

    return citation


def _add(name: str, theirs: str, *arguments: str, more: tuple[str, ...] = (), **kind: Any) -> None:
    LOSSES.add(name, Loss(_computed_by(theirs, *arguments), (*arguments, *more), cited(theirs), **kind))


_add("listmle", "ListMLELoss", in_order=True, mean_of="lists")
LOSSES.add(
    "plistmle",
    Loss(
        _plistmle,
        ("rank_discount", "normalize_weights", "normalization_method", "temperature"),
        cited("PListMLELoss"),
        in_order=True,
        mean_of="lists",
    ),
)
_add("lambdaloss", "LambdaLoss", "k", "sigma", more=("weighting",))
LOSSES.add("listnet", Loss(_listnet, ("label_temperature",), cited("ListNetLoss"), mean_of="lists"))
_add("ranknet", "RankNetLoss", "k", "sigma")
_add("adrmse", "ADRMSELoss", "alpha")
