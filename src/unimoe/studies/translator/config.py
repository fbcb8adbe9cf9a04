"""What the training of a cross-modal translator is: model, objective, sampler, schedules."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from unimoe.config.base import Count, Fraction, Positive, Section

Model = Literal["linear", "mlp1", "mlp2", "ridge", "cca", "geometry", "bigjump", "ridge_adapter"]
MODELS: tuple[Model, ...] = get_args(Model)

CLOSED_FORMS = ("ridge", "cca", "geometry")
"""Models that are computed, not trained."""

BASES: dict[Model, str] = {"bigjump": "geometry", "ridge_adapter": "ridge"}
"""Models that add a residual adapter to a closed form, and which."""

Below1 = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Shrinkage = Fraction | Literal["ledoit_wolf"]


class RidgeConfig(Section):
    """Ridge regression.

    Attributes:
        alphas: penalties tried by cross-validation grouped by image; null for fifteen around the captions' variance.
        folds: of that cross-validation.
    """

    alphas: Annotated[list[Weight], Field(min_length=1)] | None = None
    folds: Annotated[int, Field(ge=2)] = 5


class CCAConfig(Section):
    """Canonical correlations.

    Attributes:
        components: directions kept; null for all.
        power: coordinates are weighted by their correlation to this power; null tries several, see ``folds``.
        shrinkage: of both covariances; null tries several, see ``folds``.
        folds: of the cross-validation, grouped by image, that chooses by MRR what is null.
    """

    components: Count | None = None
    power: Weight | None = None
    shrinkage: Shrinkage | None = None
    folds: Annotated[int, Field(ge=2)] = 5


class BankConfig(Section):
    """What a caption's image must be told from.

    Attributes:
        kind: ``full``: all unique training images, which is exact since image vectors are frozen; ``queue``: images of
            the batch and of past batches; ``batch``: the batch's alone.
        queue: images the queue holds, each once.
        warmup_epochs: first epochs in which the queue is filled, and not used.
        recent: how many of the newest images count in each epoch after the warm-up; the last number stays.
        hardest: negatives from the queue or the full bank that count, the nearest of each caption; 0 for all.
    """

    kind: Literal["full", "queue", "batch"] = "full"
    queue: Count = 65_536
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


class PositivesConfig(Section):
    """Past predictions for other captions of the same image, as further positives.

    Attributes:
        per_image: how many of the newest count for a caption; 0 for none.
        held: predictions held over all images.
    """

    per_image: Annotated[int, Field(ge=0)] = 4
    held: Count = 32_000


class DebiasConfig(Section):
    """The debiased contrastive loss (Chuang et al. 2020).

    Attributes:
        enabled: use it.
        prior: chance that a negative is a positive that nobody labelled.
    """

    enabled: bool = False
    prior: Below1 = 0.01


class LossConfig(Section):
    """Terms of the loss beside InfoNCE, and what InfoNCE sees.

    Attributes:
        bank: negatives.
        positives: further positives.
        predictions: also ask of each image to find its captions among the batch's and past predictions.
        debiased: correct for unlabelled positives.
        cosine: weight of one minus the cosine with the target.
        moment: weight of the distance between mean and deviation of predictions and targets, by dimension.
        agreement: weight of the variance of predictions for captions of one image. Shuffled batches hold few such
            pairs; ``sampler.by_image`` gives it something to do.
    """

    bank: BankConfig = BankConfig()
    positives: PositivesConfig = PositivesConfig()
    predictions: bool = False
    debiased: DebiasConfig = DebiasConfig()
    cosine: Weight = 0.0
    moment: Weight = 0.02
    agreement: Weight = 0.05


class SamplerConfig(Section):
    """How batches are made.

    Attributes:
        batch: captions of a shuffled batch.
        by_image: batches of ``images`` x ``captions`` in place of shuffled ones.
        images: of such a batch, P.
        captions: of each of its images, K.
    """

    batch: Annotated[int, Field(ge=2)] = 512
    by_image: bool = False
    images: Annotated[int, Field(ge=2)] = 256
    captions: Count = 2


class TemperatureConfig(Section):
    """What cosines are divided by.

    Attributes:
        fixed: the same in all epochs; null for the curriculum.
        start: of the first epoch.
        end: of the last epoch; between them it falls along half a cosine wave.
    """

    fixed: Positive | None = None
    start: Positive = 0.10
    end: Positive = 0.06


class GeometryConfig(Section):
    """The closed form under an adapter, and its fine tuning.

    Attributes:
        power: of the canonical correlations: 0 whitens, rotates and recolours, 1 keeps them as least squares does.
        shrinkage: of both covariances.
        unfreeze_epoch: the first epoch, counted from 1, that trains it; null leaves it frozen.
        lr_scale: its learning rate over that of the adapter.
        freeze_bias: train its matrix alone.
    """

    power: Fraction = 0.0
    shrinkage: Shrinkage = "ledoit_wolf"
    unfreeze_epoch: Count | None = 3
    lr_scale: Positive = 0.05
    freeze_bias: bool = True


class TranslatorConfig(Section):
    """One training of a translator from caption vectors to image vectors.

    Attributes:
        model: a closed form (ridge, cca, geometry), a network from random weights (linear, mlp1, mlp2), or a closed
            form with a residual adapter whose last layer starts at zero (bigjump: geometry; ridge_adapter: ridge).
        hidden: width of hidden layers.
        centre: score by the cosine of what is left when the mean training image is taken away.
        ridge, cca, geometry: the closed forms, ridge and geometry also as they stand under an adapter.
        loss: objective.
        temperature: of InfoNCE.
        sampler: batches.
        epochs: of training; the best one on the validation images is kept.
        learning_rate: AdamW's.
        weight_decay: AdamW's; biases have none.
        save_every: epochs between saved states; a killed training loses at most these.
        validation: part of the images that choose the epoch.
        seed: of split, first weights and batches.
        device: null for the best there is.
        output_dir: where checkpoint, log and results go.
    """

    model: Model = "bigjump"
    hidden: Count = 1024
    centre: bool = True
    ridge: RidgeConfig = RidgeConfig()
    cca: CCAConfig = CCAConfig()
    geometry: GeometryConfig = GeometryConfig()
    loss: LossConfig = LossConfig()
    temperature: TemperatureConfig = TemperatureConfig()
    sampler: SamplerConfig = SamplerConfig()
    epochs: Count = 25
    learning_rate: Positive = 2e-4
    weight_decay: Weight = 1e-4
    save_every: Count = 1
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    device: Literal["cpu", "cuda", "mps"] | None = None
    output_dir: str = "outputs/translator"
