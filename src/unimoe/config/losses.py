"""What a ranking loss is: its name and its options, for the yes/no reranker and for cross-encoders."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import model_validator

from unimoe.config.base import Count, Positive, Section

LossName = Literal[
    "yes_no", "softmax", "listmle", "plistmle", "lambdaloss", "listnet", "ranknet", "adrmse", "marginmse"
]
LOSS_NAMES: tuple[LossName, ...] = get_args(LossName)

Normalization = Literal["none", "sum", "softmax", "minmax", "log", "temperature"]
RankDiscount = Literal["exponential", "identity", "log1p", "log2", "reciprocal"]
Activation = Literal["Identity", "Sigmoid", "Tanh"]
Weighting = Literal["ndcg_loss2pp", "ndcg_loss2", "ndcg_loss1", "lambdarank", "none"]

_ORDER = ("respect_input_order", "ties", "activation")
_PAIRS = ("k", "sigma", "activation")
OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "yes_no": (),
    "softmax": ("activation",),
    "listmle": _ORDER,
    "plistmle": (*_ORDER, "rank_discount", "normalize_weights", "normalization_method", "temperature"),
    "lambdaloss": (*_PAIRS, "weighting"),
    "listnet": ("activation",),
    "ranknet": _PAIRS,
    "adrmse": ("alpha", "activation"),
    "marginmse": ("activation",),
}
"""The options that each loss reads; the others must keep their defaults."""


class LossOptions(Section):
    """Options of the losses; each loss reads some of them, see ``OPTIONS_OF``. The defaults are sentence-transformers'.

    Attributes:
        activation: applied to the scores before the loss.
        respect_input_order: the order of the documents is what is taught, also among equal labels; labels must not
            rise along the list. Off: documents are sorted by label.
        ties: where the order is by label, documents of equal labels keep the order they came in, or are shuffled at
            every step, so that no order among them is taught.
        rank_discount: weight of place i in a list of n before normalisation: ``exponential`` 2^(n-i) - 1 (Lan et al.
            2014), ``identity`` 1, ``log1p`` 1/ln(1+i), ``log2`` 1/log2(1+i) as in nDCG, ``reciprocal`` 1/i.
        normalize_weights: off: the weights as they are, so that long lists count for far more than short ones.
        normalization_method: ``sum`` divides by the sum; ``softmax`` of the weights themselves, with exponential
            weights nearly all on the first place; ``minmax`` to 0..1, ``log`` ln(1+w), ``temperature``
            w^(1/temperature), each then divided by its sum; ``none`` is ``normalize_weights`` off.
        temperature: of the method of that name; below 1 sharpens, 1 is ``sum``.
        weighting: of LambdaLoss's pairs.
        k: pairs count where one of the two is among the first k by score; null for all pairs.
        sigma: score differences are multiplied by it.
        alpha: steepness of ADR-MSE's approximate ranks.
    """

    activation: Activation = "Identity"
    respect_input_order: bool = True
    ties: Literal["keep", "shuffle"] = "keep"
    rank_discount: RankDiscount = "exponential"
    normalize_weights: bool = True
    normalization_method: Normalization = "sum"
    temperature: Positive = 0.5
    weighting: Weighting = "ndcg_loss2pp"
    k: Count | None = None
    sigma: Positive = 1.0
    alpha: Positive = 1.0

    @model_validator(mode="after")
    def _one_order(self) -> LossOptions:
        if self.respect_input_order and self.ties == "shuffle":
            raise ValueError(
                "respect_input_order teaches an order among equal labels, ties: shuffle forgets it; "
                "set respect_input_order: false to shuffle"
            )
        return self

    def used_by(self, name: LossName) -> dict[str, Any]:
        """The options that a loss reads, with their values."""
        return {key: getattr(self, key) for key in OPTIONS_OF[name]}

    def refuse_unused(self, name: LossName) -> None:
        """Raise a value error where an option that the loss does not read was changed: it would do nothing."""
        for key, field in LossOptions.model_fields.items():
            if key not in OPTIONS_OF[name] and getattr(self, key) != field.default:
                takes = ", ".join(OPTIONS_OF[name]) or "no options"
                raise ValueError(f"{key}: the loss {name} does not read it; remove it ({name} takes {takes})")


class LossConfig(LossOptions):
    """A loss with its options.

    Attributes:
        name: ``yes_no`` judges each pair alone (binary cross-entropy); ``softmax`` picks the best document; the others
            are listwise or pairwise, see ``docs/losses.md``.
        mini_batch_size: pairs of one forward pass of a cross-encoder: null for as many as the batch has queries, 0 or
            below for all of them at once.
    """

    name: LossName = "plistmle"
    mini_batch_size: int | None = None

    @model_validator(mode="after")
    def _options_belong(self) -> LossConfig:
        self.refuse_unused(self.name)
        return self
