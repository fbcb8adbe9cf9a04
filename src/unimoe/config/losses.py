"""What a ranking loss is: its name and its options, for the yes/no reranker, heads and cross-encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from unimoe.config.base import Count, MetricName, Positive, Section, checked
from unimoe.core.registry import Registry

Normalization = Literal["none", "sum", "softmax", "minmax", "log", "temperature"]
RankDiscount = Literal["exponential", "exponential_plus_1", "identity", "log1p", "log2", "reciprocal"]
Activation = Literal["Identity", "Sigmoid", "Tanh"]
Baseline = Literal["leave_one_out", "group", "none"]
Weighting = Literal["ndcg_loss2pp", "ndcg_loss2", "ndcg_loss1", "lambdarank", "none"]


@dataclass(frozen=True)
class Loss:
    """A ranking loss, as the files of ``losses/named`` register it.

    ``function(scores, labels, options)`` gives a scalar tensor. ``scores`` and ``labels`` are lists of float32 tensors
    ``(n_i,)``, one of each for a list of documents; the activation was applied to the scores. ``options`` are
    ``LossOptions``. One that draws random numbers takes a ``losses.sampling.Chance`` as well.
    """

    function: Callable[..., Any]
    options: tuple[str, ...] = ()  # names of those that it reads, besides ``activation``
    citation: Callable[[], str] = str  # gives the BibTeX of its source
    labels: Literal["any", "probabilities", "graded"] = "any"  # from 0 to 1, or not 0 and 1 alone
    takes_activation: bool = True  # whether an activation of the scores makes sense
    in_order: bool = False  # whether it takes documents best first: they are sorted by label before it is called
    mean_of: Literal["lists", "documents"] | None = None  # over what the loss of a batch is a mean, if it is one
    samples: bool = False  # whether it draws random numbers

    @property
    def all_options(self) -> tuple[str, ...]:
        """Names of all options that a config may set for it."""
        order = ("respect_input_order", "ties") if self.in_order else ()
        return (*order, *(("activation",) if self.takes_activation else ()), *self.options)


LOSSES: Registry[Loss] = Registry("loss", "unimoe.training.losses.named", "unimoe.losses")

LossName = Annotated[str, checked(LOSSES.checked)]


class LossOptions(Section):
    """Options of the losses; each loss reads some of them. The defaults are sentence-transformers'.

    Attributes:
        activation: applied to the scores before the loss.
        respect_input_order: the loss teaches the order of the documents, also among equal labels; labels must not rise
            along the list. ``false``: documents are sorted by label.
        ties: where the order is by label, documents of equal labels keep the order they came in, or are shuffled at
            every step, so that no order among them is taught.
        rank_discount: weight of place i in a list of n before normalisation: ``exponential`` 2^(n-i) - 1 (Lan et al.
            2014), ``exponential_plus_1`` 2^(n-i+1) - 1, which ends at 1 (the founding document's), ``identity`` 1,
            ``log1p`` 1/ln(1+i), ``log2`` 1/log2(1+i) as in nDCG, ``reciprocal`` 1/i.
        normalize_weights: ``false`` leaves the weights as they are, so that long lists count far more than short ones.
        normalization_method: ``sum`` divides by the sum; ``softmax`` of the weights themselves, with exponential
            weights nearly all on the first place; ``minmax`` to 0..1, ``log`` ln(1+w), ``temperature``
            w^(1/temperature), each then divided by its sum; ``none`` is ``normalize_weights: false``.
        temperature: of PListMLE's normalisation ``temperature``: below 1 sharpens the weights, 1 equals ``sum``.
            ApproxNDCG divides score differences by it.
        label_temperature: ListNet divides labels by it before their softmax, which is its target.
        weighting: how LambdaLoss weights pairs.
        k: pairs count where one of the two is among the first k by score; null for all pairs.
        sigma: score differences are multiplied by it. For score_es: standard deviation of the noise on the scores,
            relative to that of the scores in their lists.
        sigma_end: score_es's sigma at the last step, reached by equal factors; null for no change.
        alpha: steepness of ADR-MSE's approximate ranks.
        measure: what score_es and pg_rank raise: a measure of a list's ranking, such as ``ndcg@10``, ``mrr@10``,
            ``ERR@20``; the list's own labels are its judgments.
        directions: score_es's directions of noise, each with both signs; the rankings that pg_rank draws of each list.
        baseline: what pg_rank subtracts from the measure of a ranking: the mean of the list's other rankings, or
            ``none``. ``group``: the mean of all, and the rest is divided by their standard deviation, so that every
            list counts alike (as in GRPO; not the gradient of the measure's mean). Pairs of score_es cancel any
            baseline; ``group`` divides there too.
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
    label_temperature: Positive = 1.0
    sigma_end: Positive | None = None
    alpha: Positive = 1.0
    measure: MetricName = "ndcg@10"
    directions: Annotated[int, Field(ge=2)] = 64
    baseline: Baseline = "leave_one_out"

    @model_validator(mode="after")
    def _one_order(self) -> LossOptions:
        if self.respect_input_order and self.ties == "shuffle":
            raise ValueError(
                "respect_input_order teaches an order among equal labels, ties: shuffle forgets it; "
                "set respect_input_order: false to shuffle"
            )
        return self

    def refuse_unused(self, name: LossName) -> None:
        """Raise a value error where an option that the loss does not read was changed: it would do nothing."""
        read = LOSSES[name].all_options
        for key, field in LossOptions.model_fields.items():
            if key not in read and getattr(self, key) != field.default:
                takes = ", ".join(read) or "no options"
                raise ValueError(f"{key}: the loss {name} does not read it; remove it ({name} takes {takes})")


class LossConfig(LossOptions):
    """A loss with its options.

    Attributes:
        name: ``yes_no`` judges each pair alone (binary cross-entropy); ``softmax`` picks the best document; the others
            are listwise, pairwise or contrastive, see ``docs/studies/cross_encoder.md``.
        mini_batch_size: pairs of one forward pass of a cross-encoder: null for as many as the batch has queries, 0 or
            below for all of them at once.
    """

    name: LossName = "plistmle"
    mini_batch_size: int | None = None

    @model_validator(mode="after")
    def _options_belong(self) -> LossConfig:
        self.refuse_unused(self.name)
        return self
