"""The arms of the comparison: nine settings each of the two keys that matter most to it, so that none is favoured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from unimoe.config.base import Fraction, Name, Positive, Section
from unimoe.config.files import parse_config
from unimoe.core.errors import did_you_mean
from unimoe.studies.heads.config import TrainConfig, original_recipe

LARGEST_GRID = 9
"""Settings of every arm."""

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison.

    Attributes:
        changes: keys of the comparison's base that it changes in every setting; a key may be ``section.key``.
        grid: two keys with three values each. ``handoff`` is a fraction of the steps.
        description: for tables.
    """

    changes: Mapping[str, Any]
    grid: Grid = field(default_factory=dict)
    description: str = ""

    def settings(self, base: TrainConfig, count: int) -> list[tuple[dict[str, Any], TrainConfig]]:
        """Return the first ``count`` settings, the grid's middle first: its keys and values, and the configuration."""
        values = list(self.grid.values())
        places = sorted(product(*(range(len(v)) for v in values)), key=lambda p: (sum(abs(i - 1) for i in p), p))
        chosen = [dict(zip(self.grid, (v[i] for v, i in zip(values, p, strict=True)), strict=True)) for p in places]
        return [
            (setting, changed(base, {**self.changes, **setting})) for setting in chosen[: count if self.grid else 1]
        ]


_RECIPE_KEYS = (
    "population_size", "sigma_is", "optimizer", "head_output_size", "adaptive_sigma", "shaping_method", "seed_scale",
    "max_norm", "scoring", "init",
)  # fmt: skip

_STEPS: Grid = {"learning_rate": (3e-4, 1e-3, 3e-3)}
_LOSS: Grid = {**_STEPS, "temperature": (0.02, 0.05, 0.1)}
_NOISE: Grid = {**_STEPS, "sigma": (0.05, 0.15, 0.5)}

ARMS: dict[str, Arm] = {
    "zero_shot": Arm({"method": "zero_shot"}, description="the frozen encoder, no head"),
    "infonce": Arm({"method": "infonce"}, _LOSS, "gradients of InfoNCE"),
    "listnet": Arm(
        {"method": "listnet"},
        {**_STEPS, "label_temperature": (0.1, 0.3, 1.0)},  # at 1 the one positive of 100 has 2.7 % of the target
        "gradients of ListNet",
    ),
    "lambdaloss": Arm({"method": "lambdaloss"}, _LOSS, "gradients of LambdaLoss (NDCG-Loss2++)"),
    "approxndcg": Arm({"method": "approxndcg"}, _LOSS, "gradients of ApproxNDCG"),
    "pg_rank": Arm({"method": "pg_rank"}, _LOSS, "policy gradients of nDCG"),
    "seed_recipe": Arm(
        {"method": "eggroll", **original_recipe().model_dump(include=set(_RECIPE_KEYS))},
        {"learning_rate": (0.01, 0.05, 0.2), "sigma": (0.01, 0.02, 0.05)},
        "the original's recipe: no 1/sigma, plain SGD, clipping, dot products, random first weights",
    ),
    "eggroll": Arm({"method": "eggroll"}, _NOISE, "evolution in the space of weights, Adam"),
    "eggroll_products": Arm(
        {"method": "eggroll", "grid": True, "population_size": 4096},
        _NOISE,
        "evolution in the space of weights, 2,048 product directions",
    ),
    "score_es": Arm(
        {"method": "score_es"},
        {**_STEPS, "sigma": (0.15, 0.5, 1.0)},
        "evolution in the space of scores, exact gradients of the head",
    ),
    "hybrid": Arm(
        {"method": "hybrid"},
        {"handoff": (0.25, 0.5, 0.75), "gradient_learning_rate": (3e-4, 1e-3, 3e-3)},
        "evolution, then InfoNCE",
    ),
    "genetic": Arm(
        {"method": "genetic"},
        {"genetic.crossover": (0.0, 0.5, 0.9), "genetic.mutation": (0.02, 0.05, 0.15)},
        "a genetic algorithm: tournament, crossover, rank-1 mutation, elites",
    ),
    "genetic_fp4": Arm(
        {"method": "genetic", "precision": "fp4"},
        {"genetic.crossover": (0.0, 0.5, 0.9), "genetic.mutation": (0.02, 0.05, 0.15)},
        "the genetic algorithm, a population in four bits",
    ),
    "eggroll_fp4": Arm(
        {"method": "eggroll", "precision": "fp4"},
        {"learning_rate": (1e-3, 3e-3, 1e-2), "sigma": (0.05, 0.15, 0.5)},
        "evolution, weights in four bits",
    ),
    "eggroll_soft_labels": Arm(
        {"method": "eggroll", "soft_labels": {}}, _NOISE, "evolution, half-relevant labels by vote in training"
    ),
    "eggroll_objectives": Arm(
        {"method": "eggroll"},
        {**_STEPS, "objectives.diversity": (0.1, 0.3, 1.0)},
        "evolution, nDCG and diversity of the first documents",
    ),
}
"""All arms, baselines first."""


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name not in ARMS:
            raise ValueError(f"unknown method {name!r}{did_you_mean(name, ARMS)}; there are {', '.join(ARMS)}")
    return list(dict.fromkeys(names))


class Comparison(Section):
    """A comparison of methods on one collection.

    Attributes:
        name: the experiment of every result; ``base.output_dir`` holds one comparison.
        base: the settings that all arms share: data, pools, encoder, head, scoring, steps, cutoff.
        methods: names of ``ARMS``; zero-shot and InfoNCE are the baselines.
        settings: tried on dev for each arm, up to nine.
        seeds: of the reported trainings.
        tuning_seed: of the trainings that choose a setting.
        give_up: nDCG on dev that an arm with diversity may lose against its best setting: of those on the front of
            both, the most diverse within this much is chosen.
        voters: of ``eggroll_soft_labels``, as in ``base.soft_labels.voters``; null for BM25 and the head's own encoder,
            which made the pool: add one that did not, such as ``reranker:cross-encoder:NAME``.
        margin: evolution must beat InfoNCE by this much for the gate to pass.
        caveats: reasons why results are unfit for decisions, copied into every result.
    """

    name: Name = "heads"
    base: TrainConfig = TrainConfig()
    methods: Annotated[list[str], Field(min_length=1), AfterValidator(_known)] = [*ARMS]  # noqa: RUF012 - pydantic copies it
    settings: Annotated[int, Field(ge=1, le=LARGEST_GRID)] = LARGEST_GRID
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] = [0, 1, 2, 3, 4]  # noqa: RUF012
    tuning_seed: Annotated[int, Field(ge=0, lt=2**31)] = 100
    give_up: Fraction = 0.01
    voters: list[str] | None = None
    margin: Positive = 0.01
    caveats: list[str] = []  # noqa: RUF012

    @model_validator(mode="after")
    def _possible(self) -> Comparison:
        if len(set(self.seeds)) != len(self.seeds) or self.tuning_seed in self.seeds:
            raise ValueError("seeds: each once, and none the tuning_seed, which has chosen the setting")
        for name in self.methods:  # an arm that cannot be trained is refused before the others are
            ARMS[name].settings(self.base, self.settings)
        return self


def in_words(setting: Mapping[str, Any]) -> str:
    """Return the keys and values of a setting as text, for tables and progress."""
    return ", ".join(f"{key} {value:g}" for key, value in setting.items())


def changed(base: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Change some keys of a configuration; ``section.key`` is a key of a section.

    Raises:
        UsageError: the keys do not go together.
    """
    raw: dict[str, Any] = base.model_dump()
    for key, value in changes.items():
        section, _, inner = key.partition(".")
        if key == "handoff":
            raw[key] = max(1, min(raw["num_steps"] - 1, round(value * raw["num_steps"])))
        elif key == "soft_labels":
            raw[key] = {"voters": ["bm25", base.encoder.base], **value}
        elif inner:
            raw[section] = {**raw[section], inner: value}
        else:
            raw[key] = value
    return parse_config(TrainConfig, raw, source=f"compare-heads, {raw['method']}")
