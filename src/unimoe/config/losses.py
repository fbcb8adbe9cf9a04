"""How a config chooses a ranking loss: by a name of the registry, with the keys of that loss and no other's.

The losses are in ``training/losses/``. Their entry points lead to them, so that this floor knows none by name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from unimoe.config.base import Section
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.registry import Registry


class Loss(Section):
    """A ranking loss: its fields are its keys in a config, and a call computes it.

    In addition to its fields it states what kind of loss it is, as plain attributes of the class.

    Attributes:
        activation: applied to the scores before the loss.
    """

    name: ClassVar[str]  # that of ``register_loss``
    cites: ClassVar[str] = ""  # BibTeX of its source, a key of ``losses/papers.bib``, or a class of theirs
    labels: ClassVar[Literal["any", "probabilities", "graded"]] = "any"  # from 0 to 1, or not 0 and 1 alone
    mean_of: ClassVar[Literal["lists", "documents"] | None] = None  # over what the loss of a batch is a mean, if one
    samples: ClassVar[bool] = False  # whether it draws from its ``chance``

    activation: Literal["Identity", "Sigmoid", "Tanh"] = "Identity"

    def __call__(self, scores: Any, labels: Any, chance: Any) -> Any:
        """Return the loss of a batch, a scalar tensor.

        Args:
            scores: a float32 tensor ``(n_i,)`` for each list of documents, after the activation.
            labels: the same shapes; larger is better.
            chance: a ``losses.sampled.Chance``: random numbers, and the progress of the training.
        """
        raise NotImplementedError

    def order(self, index: int, labels: Any, generator: Any) -> Any:
        """Return the places of a list's documents in the order that the loss takes; None for the order as it is."""
        return None

    @property
    def teaches_order(self) -> bool:
        """Whether equal labels teach something: the order in which their documents come."""
        return False

    @property
    def draws(self) -> bool:
        """Whether it needs random numbers."""
        return self.samples

    @model_serializer(mode="wrap")
    def _with_name(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.name, **write(self)}


LOSSES: Registry[type[Loss]] = Registry("loss", None, "unimoe.losses")


def _chosen(given: Any) -> Loss:
    """Return the loss that a config names, alone or in a section with keys."""
    if isinstance(given, Loss):
        return given
    keys = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, dict) else {}
    if not isinstance(name := keys.pop("name", None), str):
        raise ValueError("must be the name of a loss, or a section with its name and keys, such as {name: listmle}")
    try:
        kind = LOSSES[name]
    except UsageError as error:
        raise ValueError(str(error)) from None
    known = kind.model_fields
    if unknown := [key for key in keys if key not in known]:  # refused here, where the keys of this loss are known
        key = unknown[0]
        said = f"unknown key{did_you_mean(str(key), known)}; {name} takes {', '.join(known)}"
        mistake = PydanticCustomError("unknown_key", "{said}", {"said": said})
        raise ValidationError.from_exception_data(name, [InitErrorDetails(type=mistake, loc=(key,), input=keys[key])])
    return kind.model_validate(keys)


RankingLoss = Annotated[SerializeAsAny[Loss], BeforeValidator(_chosen)]
"""A loss in a config: ``softmax``, or ``{name: plistmle, discount: log1p}``; it is recorded with all its keys."""
