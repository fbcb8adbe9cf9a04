"""The settings of each translator tried in a comparison, and the components that an ablation switches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from unimoe.config.base import Name, Positive, Section
from unimoe.config.files import parse_config
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.studies.translator.config import MODELS, TranslatorConfig

Changes = Mapping[str, Any]

BASELINE = "ridge"
ADAPTERS = ("bigjump", "ridge_adapter")

_FROM_RANDOM: tuple[Changes, ...] = (
    {"learning_rate": 1e-3},
    {"learning_rate": 3e-4},
    {"learning_rate": 1e-3, "temperature.fixed": 0.2},
    {"learning_rate": 3e-3},
    {"learning_rate": 1e-3, "temperature.fixed": 0.05},
    {"learning_rate": 3e-4, "temperature.fixed": 0.2},
)
_ON_GEOMETRY: tuple[Changes, ...] = (
    {"learning_rate": 3e-4, "geometry.power": 0.0},
    {"learning_rate": 3e-4, "geometry.power": 1.0},
    {"learning_rate": 3e-4, "geometry.power": 1.0, "temperature.fixed": 0.2},
    {"learning_rate": 1e-3, "geometry.power": 1.0},
    {"learning_rate": 1e-3, "geometry.power": 0.0},
    {"learning_rate": 3e-4, "geometry.power": 0.5},
)
_ON_RIDGE: tuple[Changes, ...] = (
    {"learning_rate": 3e-4},
    {"learning_rate": 1e-3},
    {"learning_rate": 3e-4, "temperature.fixed": 0.2},
    {"learning_rate": 1e-4},
    {"learning_rate": 1e-3, "temperature.fixed": 0.2},
    {"learning_rate": 3e-4, "temperature.fixed": 0.05},
)

SETTINGS: dict[str, tuple[Changes, ...]] = {
    # Cross-validation within the training images chooses the settings of these two.
    "ridge": ({},),
    "cca": ({},),
    "geometry": (
        *({"geometry.power": power} for power in (0.0, 0.5, 1.0)),
        *({"geometry.power": power, "geometry.shrinkage": 0.3} for power in (0.5, 1.0)),
    ),
    "linear": _FROM_RANDOM,
    "mlp1": _FROM_RANDOM,
    "mlp2": _FROM_RANDOM,
    "bigjump": _ON_GEOMETRY,
    "ridge_adapter": _ON_RIDGE,
}
"""The changes to the base that are tried on dev, the most promising first."""

_MOST_SETTINGS = 6

_BATCH_IMAGES, _BATCH_CAPTIONS = 64, 2

COMPONENTS: dict[str, tuple[Changes, str]] = {
    "all_on": ({}, "queue, mining, further positives, P x K, all terms, curriculum, warm-up, unfreezing"),
    "no_queue": ({"loss.bank.kind": "batch", "loss.bank.hardest": 0}, "negatives of the batch alone"),
    "full_bank": ({"loss.bank.kind": "full", "loss.bank.hardest": 0}, "all training images, no queue, no mining"),
    "no_mining": ({"loss.bank.hardest": 0}, "all of the queue in place of its hardest"),
    "no_warmup": ({"loss.bank.warmup_epochs": 0}, "the queue from the first epoch on"),
    "no_further_positives": ({"loss.positives.per_image": 0}, "one positive a caption"),
    "no_agreement": ({"loss.agreement": 0.0}, "captions of an image need not agree"),
    "no_moment": ({"loss.moment": 0.0}, "moments are not matched"),
    "no_cosine": ({"loss.cosine": 0.0}, "no cosine term"),
    "shuffled": ({"sampler.by_image": False}, "shuffled batches in place of so many images x 2 captions"),
    "no_curriculum": ({"temperature.fixed": 0.06}, "temperature .06 throughout"),
    "frozen": ({"geometry.unfreeze_epoch": None}, "the closed form stays as it is"),
    "with_predictions": ({"loss.predictions": True}, "images look for captions too, past predictions among them"),
    "debiased": ({"loss.debiased.enabled": True}, "the debiased loss, prior .01"),
    "from_random": ({"model": "mlp1"}, "the same network without the closed form under it"),
}
"""Each row of the ablation: its changes against ``all_on``, and what they mean."""


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name not in SETTINGS:
            raise ValueError(f"unknown model {name!r}{did_you_mean(name, SETTINGS)}; there are {', '.join(MODELS)}")
    return list(dict.fromkeys(names))


class TranslatorComparison(Section):
    """A comparison of translators on one data set.

    Attributes:
        name: the experiment in every result; ``base.output_dir`` holds one comparison.
        dataset: name of the data in results.
        base: configuration that all models share.
        models: by name; ridge is the baseline of the adapters' gates.
        settings: number of settings of each network tried on dev.
        seeds: of the trainings that are reported. A seed splits the images outside the test part into train and dev,
            and draws first weights and batches.
        tuning_seed: of the trainings that choose a setting.
        dev: share of the images that chooses settings and epochs.
        test: share of the images that is reported, the same images for every seed, so that scores pair.
        split_seed: of the choice of the test images.
        margin: the MRR by which an adapter must beat ridge.
        caveats: reasons why results are unfit for decisions.
    """

    name: Name = "translators"
    dataset: str
    base: TranslatorConfig = TranslatorConfig()
    models: Annotated[list[str], Field(min_length=1), AfterValidator(_known)] = [*SETTINGS]  # noqa: RUF012 - pydantic copies it
    settings: Annotated[int, Field(ge=1, le=_MOST_SETTINGS)] = _MOST_SETTINGS
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] = [0, 1, 2, 3, 4]  # noqa: RUF012
    tuning_seed: Annotated[int, Field(ge=0, lt=2**31)] = 100
    dev: Annotated[float, Field(gt=0, lt=1)] = 0.15
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    split_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    margin: Positive = 0.01
    caveats: list[str] = []  # noqa: RUF012

    @model_validator(mode="after")
    def _possible(self) -> TranslatorComparison:
        if len(set(self.seeds)) != len(self.seeds) or self.tuning_seed in self.seeds:
            raise ValueError("seeds: give each once, and not the tuning_seed, which chose the setting")
        if self.dev + self.test >= 1:
            raise ValueError("dev and test leave no image to train on; lower them")
        return self

    def tried(self, model: str) -> list[tuple[Changes, TranslatorConfig]]:
        """Return the settings of a model to try: the changes, and the whole configuration."""
        listed = SETTINGS[model][: self.settings if len(SETTINGS[model]) == _MOST_SETTINGS else None]
        return [(changes, changed(self.base, {"model": model, **changes})) for changes in listed]


def ablation_config(base: TranslatorConfig, component: str, images: int) -> TranslatorConfig:
    """Return the configuration of one row of the ablation, a name of ``COMPONENTS``.

    In ``all_on`` every component is active: batches of 64 images x 2 captions, or a quarter of the training images
    where that is less; a queue of up to sixteen such batches; half as many hardest negatives as a batch has images.

    Raises:
        UsageError: too few training images or epochs for the queue to be used.
    """
    batch = min(_BATCH_IMAGES, images // 4)
    if batch < 2 or base.epochs <= base.loss.bank.warmup_epochs:
        raise UsageError(
            f"an ablation of {images} training images and {base.epochs} epochs would leave the queue unused; "
            f"give 8 images and {base.loss.bank.warmup_epochs + 1} epochs at least"
        )
    everything: Changes = {
        "model": "bigjump",
        "loss.bank.kind": "queue",
        "loss.bank.hardest": batch // 2,
        "loss.bank.recent": [4 * batch, 8 * batch, 16 * batch],
        "loss.bank.queue": 16 * batch,
        "loss.cosine": 0.1,
        "sampler.by_image": True,
        "sampler.images": batch,
        "sampler.captions": _BATCH_CAPTIONS,
        "sampler.batch": _BATCH_CAPTIONS * batch,
    }
    return changed(base, {**everything, **COMPONENTS[component][0]})


def changed(base: TranslatorConfig, changes: Changes) -> TranslatorConfig:
    """Return a configuration with some keys changed; ``section.key`` reaches into a section."""
    raw: dict[str, Any] = base.model_dump()
    for key, value in changes.items():
        *sections, last = key.split(".")
        reduce(getitem, sections, raw)[last] = value
    return parse_config(TranslatorConfig, raw, source="compare-translators")
