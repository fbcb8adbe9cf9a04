"""The configuration of a translator's training: model, objective, batches and schedules."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from unimoe.config.base import Count, Fraction, Positive, Section, Width
from unimoe.config.training import Tracker

TranslatorModel = Literal["linear", "mlp1", "mlp2", "ridge", "cca", "geometry", "bigjump", "ridge_adapter"]
MODELS: tuple[TranslatorModel, ...] = get_args(TranslatorModel)

CLOSED_FORMS = ("ridge", "cca", "geometry")
"""Models that are computed, not trained."""

BASES: dict[TranslatorModel, str] = {"bigjump": "geometry", "ridge_adapter": "ridge"}
"""Residual adapters and the closed form under each; ``bigjump`` is the original's name of the geometry adapter."""

Below1 = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Shrinkage = Fraction | Literal["ledoit_wolf"]


class RidgeConfig(Section):
    """Ridge regression.

    Attributes:
        alphas: penalties tried by cross-validation grouped by image; null for fifteen around the captions' variance.
        folds: number of folds of that cross-validation.
    """

    alphas: Annotated[list[NonNegative], Field(min_length=1)] | None = None
    folds: Annotated[int, Field(ge=2)] = 5


class CCAConfig(Section):
    """Canonical correlations.

    Attributes:
        components: directions kept; null for all.
        power: coordinates are weighted by their correlation to this power; null tries several.
        shrinkage: how far both covariances are shrunk; null tries several.
        folds: number of folds of the cross-validation that chooses what is null, by MRR; folds are grouped by image.
    """

    components: Count | None = None
    power: NonNegative | None = None
    shrinkage: Shrinkage | None = None
    folds: Annotated[int, Field(ge=2)] = 5


class BankConfig(Section):
    """The images among which a caption must find its own.

    Attributes:
        kind: ``full``: all unique training images, which is exact because image vectors are frozen; ``queue``: images
            of this batch and of past ones; ``batch``: images of this batch.
        queue: images the queue holds, each once.
        warmup_epochs: first epochs, in which the queue fills and is not used.
        recent: number of the newest images in use in each epoch after the warm-up; the last number stays.
        hardest: negatives from the queue or the full bank that count, the nearest of each caption; 0 for all.
    """

    kind: Literal["full", "queue", "batch"] = "full"
    queue: Annotated[int, Field(ge=1, le=2**24)] = 65_536
    warmup_epochs: Annotated[int, Field(ge=0)] = 2
    recent: Annotated[list[Count], Field(min_length=1)] = [16_000, 32_000, 65_536]  # noqa: RUF012 - pydantic copies it
    hardest: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _possible(self) -> BankConfig:
        if self.kind == "queue" and max(self.recent) > self.queue:
            raise ValueError(f"recent {max(self.recent)} is more than the queue holds, {self.queue}; raise queue")
        if self.kind == "batch" and self.hardest:
            raise ValueError("hardest needs a bank larger than the batch: kind full or queue")
        return self

    def recent_at(self, epoch: int) -> int:
        """Return how many images of the queue an epoch counted from 0 uses; none in the warm-up."""
        after = epoch - self.warmup_epochs
        return 0 if after < 0 else self.recent[min(after, len(self.recent) - 1)]


class PositivesConfig(Section):
    """Past predictions for other captions of the same image, as further positives.

    Attributes:
        per_image: number of the newest that count for a caption; 0 for none.
        held: predictions held over all images.
    """

    per_image: Annotated[int, Field(ge=0)] = 4
    held: Annotated[int, Field(ge=1, le=2**24)] = 32_000


class DebiasConfig(Section):
    """The debiased contrastive loss (Chuang et al. 2020).

    Attributes:
        enabled: subtract the share of positives that is expected among the negatives.
        prior: the chance that a negative is a positive.
    """

    enabled: bool = False
    prior: Below1 = 0.01


class TranslatorLossConfig(Section):
    """InfoNCE and the terms added to it.

    Attributes:
        bank: negatives.
        positives: further positives.
        predictions: also find the captions of each image among the predictions of this batch and of past ones.
        debiased: correct for unlabelled positives.
        cosine: weight of one minus the cosine with the target.
        moment: weight of the distance between mean and deviation of predictions and targets, by dimension.
        agreement: weight of the variance of predictions for captions of one image. Shuffled batches hold few such
            pairs; ``sampler.by_image`` provides them.
    """

    bank: BankConfig = BankConfig()
    positives: PositivesConfig = PositivesConfig()
    predictions: bool = False
    debiased: DebiasConfig = DebiasConfig()
    cosine: NonNegative = 0.0
    moment: NonNegative = 0.02
    agreement: NonNegative = 0.05


class SamplerConfig(Section):
    """Batches: ``batch`` shuffled captions, or with ``by_image`` so many ``captions`` (K) of so many ``images`` (P).

    Attributes:
        batch: captions of a shuffled batch.
        by_image: draw images, then captions of each.
        images: images of such a batch (P).
        captions: captions of each of them (K).
    """

    batch: Annotated[int, Field(ge=2)] = 512
    by_image: bool = False
    images: Annotated[int, Field(ge=2)] = 256
    captions: Count = 2


class TemperatureConfig(Section):
    """The divisor of cosines: ``fixed``, or if null, half a cosine wave from ``start`` to ``end`` over the epochs.

    Attributes:
        fixed: one divisor for all epochs; null for the wave.
        start: divisor of the first epoch.
        end: divisor of the last epoch.
    """

    fixed: Positive | None = None
    start: Positive = 0.10
    end: Positive = 0.06

    def at(self, epoch: int, epochs: int) -> float:
        """Return the divisor of an epoch counted from 0."""
        if self.fixed is not None:
            return self.fixed
        passed = epoch / max(1, epochs - 1)
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * passed))


class GeometryConfig(Section):
    """The geometry map, and the training of the closed form under an adapter.

    Attributes:
        power: exponent of canonical correlations: 0 whitens, rotates and recolours, 1 keeps them as least squares does.
        shrinkage: how far both covariances are shrunk.
        unfreeze_epoch: the first epoch, counted from 1, that trains the closed form; null leaves it frozen.
        lr_scale: the closed form's learning rate over that of the adapter.
        freeze_bias: train the closed form's matrix only.
    """

    power: Fraction = 0.0
    shrinkage: Shrinkage = "ledoit_wolf"
    unfreeze_epoch: Count | None = 3
    lr_scale: Positive = 0.05
    freeze_bias: bool = True


class TranslatorConfig(Section):
    """One training of a translator from caption vectors to image vectors.

    Attributes:
        model: a closed form (ridge, cca, geometry), a network from random weights (linear, mlp1, mlp2), or a residual
            adapter with a last layer that starts at zero, on geometry (bigjump) or on ridge (ridge_adapter).
        hidden: width of hidden layers.
        centre: rank by the cosine after the mean training image is subtracted.
        ridge, cca, geometry: the closed forms, alone or under an adapter.
        epochs: number of training epochs; the best one on the validation images is kept.
        learning_rate: AdamW's learning rate.
        weight_decay: AdamW's weight decay; biases do not decay.
        save_every: epochs between saved states.
        tracking: trackers that receive the log, in addition to ``logs/train.jsonl``.
        validation: share of the images that chooses the epoch.
        seed: decides split, first weights and batches.
        device: null for the best available.
        output_dir: folder of checkpoint, log and results.
    """

    model: TranslatorModel = "bigjump"
    hidden: Width = 1024
    centre: bool = True
    ridge: RidgeConfig = RidgeConfig()
    cca: CCAConfig = CCAConfig()
    geometry: GeometryConfig = GeometryConfig()
    loss: TranslatorLossConfig = TranslatorLossConfig()
    temperature: TemperatureConfig = TemperatureConfig()
    sampler: SamplerConfig = SamplerConfig()
    epochs: Count = 25
    learning_rate: Positive = 2e-4
    weight_decay: NonNegative = 1e-4
    save_every: Count = 1
    tracking: list[Tracker] = Field(default_factory=list)
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    device: Literal["cpu", "cuda", "mps"] | None = None
    output_dir: str = "outputs/translator"
