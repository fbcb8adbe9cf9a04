"""Ranking losses by name, over scores that were computed already: for arms, heads, cross-encoders and bi-encoders.

A loss is a class. Its fields are its keys in a config, and a call computes it::

    from unimoe.training.losses import Loss, register_loss

    @register_loss("hinge")
    class Hinge(Loss):
        margin: float = 1.0

        def __call__(self, scores, labels, chance):
            ...

One without keys may be a function of scores and labels. Every config that names a loss can name it then. Inside unimoe
it is a file of this folder with an entry point in ``pyproject.toml``. Such a file imports torch inside its functions,
because a config is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from unimoe.config.losses import LOSSES, Loss
from unimoe.core.errors import DataError, UsageError, guarded
from unimoe.core.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["DISCOUNTS", "LOSSES", "Chance", "Lists", "Loss", "register_discount", "register_loss"]

L = TypeVar("L", bound="type[Loss] | Callable[..., Any]")

Lists: TypeAlias = "Sequence[Tensor]"
"""One float32 tensor ``(n_i,)`` for each list of documents: its scores, or its labels."""

DISCOUNTS: Registry[Callable[[Tensor], Tensor]] = Registry("rank discount", None, "unimoe.losses")
"""From the ranks ``1..n`` of a list, ``(n,)``, to logarithms of their weights in PListMLE."""


@dataclass(frozen=True)
class Chance:
    """What a loss draws from.

    Attributes:
        generator: on the CPU, where draws are the same for every device; None for torch's own.
        progress: of the training, 0 at its first step and 1 at its last.
    """

    generator: torch.Generator | None
    progress: float


def register_loss(name: str) -> Callable[[L], L]:
    """Register the class of a loss, or a function of scores and labels; a UsageError where the name is taken."""

    def register(loss: L) -> L:
        given: Any = loss

        class FunctionLoss(Loss):
            __module__ = given.__module__  # where it is from: errors of a user's become one line

            def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Any:
                return given(scores, labels)

        kind: type[Loss] = given if isinstance(given, type) else FunctionLoss
        if not issubclass(kind, Loss):
            raise UsageError(f"the loss {name} is a class that is no Loss; derive {kind.__name__} from Loss")
        LOSSES.add(name, kind)
        kind.name = name
        return loss

    return register


def register_discount(name: str, function: Callable[[Tensor], Tensor]) -> None:
    """Register a rank discount of PListMLE: a function of the ranks ``1..n`` of a list that returns their weights."""
    computed: Callable[[Tensor], Any] = guarded(f"the rank discount {name} raised", function)

    def logarithms(ranks: Tensor) -> Tensor:
        from torch import Tensor

        weights = computed(ranks.float())
        fits = isinstance(weights, Tensor) and weights.shape == ranks.shape
        if not fits or not (weights.isfinite() & (weights >= 0)).all():
            raise DataError(
                f"the rank discount {name} has to return a weight for each of {len(ranks)} ranks, finite and not below "
                "0; fix it"
            )
        found: Tensor = weights.to(ranks).log()
        return found

    DISCOUNTS.add(name, logarithms)
