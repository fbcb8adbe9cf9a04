"""The configuration of a head's training: data, pools, head, method and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from unimoe.config import BM25Config
from unimoe.config.base import BUNDLED_ENCODER, Count, EncoderConfig, Fraction, Positive, Section, Width
from unimoe.config.losses import LOSSES
from unimoe.config.training import Tracker
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.data.catalog import available
from unimoe.studies.common.splits import SplitConfig

EVOLUTION = ("eggroll", "score_es", "genetic", "hybrid")


def collection_at_hand() -> str:
    """Return the collection of a command or study that names none: SciFact's folder, else the bundled one."""
    return "scifact" if available("scifact") else "apidocs"


def gradient_methods() -> tuple[str, ...]:
    """Return the losses that take whole grades, 0 and 1 among them: each is a method of its name.

    Not ``score_es``, which is a method with settings of its own.
    """
    return tuple(name for name, loss in LOSSES.items() if loss.labels == "any" and name not in EVOLUTION)


def methods() -> tuple[str, ...]:
    """Return the names of all methods."""
    return ("zero_shot", *EVOLUTION, *gradient_methods())


def _read_by() -> dict[str, tuple[str, ...]]:
    """Return the methods that read a key, of keys that not all of them read."""
    weights, every, losses = ("eggroll", "hybrid"), methods(), gradient_methods()
    climbing = tuple(name for name in every if name not in ("genetic", "zero_shot"))
    return {
        **dict.fromkeys(("population_size", "sigma", "sigma_is"), (*weights, "score_es")),
        **dict.fromkeys(("adaptive_sigma", "shaping_method", "noise_rank", "grid", "seed_scale"), weights),
        **dict.fromkeys(("learning_rate", "optimizer", "max_norm", "weight_decay"), climbing),
        **dict.fromkeys(("handoff", "gradient_method", "gradient_learning_rate"), ("hybrid",)),
        "genetic": ("genetic",),
        "temperature": (*losses, "hybrid"),
        "label_temperature": ("listnet", "hybrid"),
    }


def _known(name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise ValueError(f"there is no method {name!r}{did_you_mean(name, known)}; use {', '.join(known)}")
    return name


MethodName = Annotated[str, AfterValidator(lambda name: _known(name, methods()))]
GradientLoss = Annotated[str, AfterValidator(lambda name: _known(name, gradient_methods()))]

Similarity = Literal["dot", "cosine"]
ObjectiveName = Literal["relevance", "diversity", "fairness", "freshness"]


def _relevance_alone() -> dict[ObjectiveName, float]:
    return {"relevance": 1.0}


class PoolConfig(Section):
    """The candidates of a query.

    Attributes:
        source: the best documents by BM25, or by the frozen encoder.
        depth: candidates of a query. Positives that the source does not find are added to training pools only, in place
            of the last negatives and up to half of the pool.
        bm25: BM25's parameters.
    """

    source: Literal["bm25", "dense"] = "bm25"
    depth: Annotated[int, Field(ge=2)] = 100
    bm25: BM25Config = BM25Config()


class SoftLabelConfig(Section):
    """Votes of several rankers on unjudged candidates: those that enough of them rank high are half relevant.

    Attributes:
        voters: ``bm25``, encoders as in ``encoder.base``, ``lm:`` and a causal language model as in ``model.base``, or
            ``reranker:`` and any reranker that ``evaluate --model`` takes, such as ``reranker:cross-encoder:NAME``.
        top_k: the lowest rank that gets a ranker's vote.
        votes: the number of votes that a candidate needs.
        grade: the label of a candidate with enough votes.
    """

    voters: list[str] = Field(default_factory=lambda: ["bm25", BUNDLED_ENCODER], min_length=2)
    top_k: Count = 20
    votes: Annotated[int, Field(ge=2)] = 2
    grade: Positive = 0.5

    @model_validator(mode="after")
    def _enough_voters(self) -> SoftLabelConfig:
        if self.votes > len(self.voters):
            raise ValueError(f"votes is {self.votes}, but there are only {len(self.voters)} voters")
        return self


class GeneticConfig(Section):
    """The genetic algorithm.

    Attributes:
        individuals: heads of one generation.
        elites: how many of the best live on unchanged.
        tournament: individuals drawn for each parent; the best of them is the parent.
        crossover: probability of two parents; a child is ``t W1 + (1 - t) W2`` with a random t, else a copy.
        mutation: standard deviation of the rank-1 mutation, relative to the weights.
    """

    individuals: Annotated[int, Field(ge=4, le=2**20)] = 32
    elites: Count = 2
    tournament: Annotated[int, Field(ge=2)] = 3
    crossover: Fraction = 0.5
    mutation: Positive = 0.05

    @model_validator(mode="after")
    def _room_for_children(self) -> GeneticConfig:
        if self.elites >= self.individuals:
            raise ValueError(f"elites {self.elites} must be below individuals {self.individuals}")
        return self


class TrainConfig(Section):
    """One training of a head.

    Attributes:
        task: a collection of the catalogue; ``NanoMSMARCO`` and its siblings are ``nanobeir:MSMARCO`` and so on.
        splits: the queries that train, choose and report; null for the published splits if there is a train split, else
            parts of the test split.
        drop_shared: leave out of training what dev or test have too, by text, instead of a caveat or a refusal.
        encoder: frozen; its embeddings are cached.
        head_output_size: dimensions after the head.
        scoring: how a projected query and document are compared, the same in training, choice and report.
        init: ``pca``: the directions in which the documents' embeddings are longest, which keeps the encoder's ranking;
            ``orthogonal``: random ones; ``normal``: independent entries of variance 1 / inputs.
        method: evolution, genetic, hybrid, a loss, or ``zero_shot``, which trains nothing.
        num_steps: steps, or generations.
        batch_size: queries of one step.
        population_size: perturbations of one step, two of each direction.
        sigma: size of a perturbation.
        sigma_is: ``relative`` to the weights (sigma is then the ratio of their norms), or ``absolute``.
        learning_rate: the optimizer's; Adam's steps do not depend on the gradient's size, SGD's do.
        optimizer: all methods except the genetic algorithm use it.
        adaptive_sigma: let sigma follow how much perturbations change the ranking.
        shaping_method: how the fitness of perturbations becomes weights.
        noise_rank: rank of a perturbation.
        grid: take the products of few a and few b vectors as directions: cheaper, and noisier by a known factor.
        max_norm: gradients are clipped to this norm; null for no clipping.
        weight_decay: per step, relative to the learning rate.
        seed_scale: leave 1/sigma out of the gradient estimate, as the original does.
        label_temperature: ListNet divides grades by it before their softmax: below 1, its target has more mass on the
            relevant documents.
        temperature: gradient losses divide cosines or dot products by it.
        ndcg_k: cutoff of the nDCG in training, choice and report.
        gain: the gain of a grade in nDCG; equality with trec_eval holds for ``linear``.
        precision: of evolution: ``fp4`` keeps the weights in NVFP4 between steps, ``bfloat16`` concerns products alone.
        soft_labels: half-relevant labels for training queries; null for none.
        objectives: weights of the objectives in the fitness; eggroll, genetic and hybrid take more than relevance.
        handoff: steps of evolution before gradients take over, where the method is ``hybrid``.
        gradient_method: the loss of ``hybrid`` from then on.
        gradient_learning_rate: its learning rate.
        eval_every: steps between evaluations on the dev queries.
        save_every: steps between saved states; a killed run loses at most these.
        tracking: trackers that receive the log, in addition to ``logs/train.jsonl``.
        seed: decides noise, batches and random first weights.
        device: None for the best available.
        output_dir: the folder of checkpoints, logs and results.
    """

    task: str = "NanoMSMARCO"
    splits: SplitConfig | None = None
    drop_shared: bool = False
    encoder: EncoderConfig = EncoderConfig()
    pools: PoolConfig = PoolConfig()
    head_output_size: Width = 128
    scoring: Similarity = "cosine"
    init: Literal["pca", "orthogonal", "normal"] = "pca"
    method: MethodName = "eggroll"
    num_steps: Count = 300
    batch_size: Count = 32
    population_size: Annotated[int, Field(ge=2, le=2**20)] = 256
    sigma: Positive = 0.05
    sigma_is: Literal["relative", "absolute"] = "relative"
    learning_rate: Positive = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    adaptive_sigma: bool = False
    shaping_method: Literal["rank", "zscore", "combined", "none"] = "zscore"
    noise_rank: Width = 1
    grid: bool = False
    max_norm: Positive | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    seed_scale: bool = False
    temperature: Positive = 0.05
    label_temperature: Positive = 1.0
    ndcg_k: Count = 10
    gain: Literal["linear", "exp2"] = "linear"
    precision: Literal["float32", "bfloat16", "fp4"] = "float32"
    soft_labels: SoftLabelConfig | None = None
    objectives: dict[ObjectiveName, Positive] = Field(default_factory=_relevance_alone, min_length=1)
    genetic: GeneticConfig = GeneticConfig()
    handoff: Count = 100
    gradient_method: GradientLoss = "infonce"
    gradient_learning_rate: Positive = 1e-3
    eval_every: Count = 25
    save_every: Count = 50
    tracking: list[Tracker] = Field(default_factory=list)
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    device: Literal["cpu", "cuda", "mps"] | None = None
    output_dir: str = "outputs/heads"

    @model_validator(mode="after")
    def _possible(self) -> TrainConfig:
        if self.population_size % 2:
            raise ValueError(f"population_size {self.population_size} is odd; each direction is tried both ways")
        if set(self.objectives) != {"relevance"} and self.method not in ("eggroll", "genetic", "hybrid"):
            raise ValueError(f"objectives: {self.method} optimises relevance only; use eggroll or genetic")
        if self.precision != "float32" and self.method in gradient_methods():
            raise ValueError(f"precision {self.precision}: {self.method} takes float32; evolution takes fewer bits")
        if self.method in EVOLUTION:
            self._refuse_clashes()
        if self.method == "hybrid" and self.handoff >= self.num_steps:
            raise ValueError(f"handoff {self.handoff} must be below num_steps {self.num_steps}")
        return self

    def refuse_unread(self, given: Iterable[str], source: str) -> None:
        """Refuse keys that the method ignores, of those given for it: results would name what had no effect.

        A UsageError begins with the ``source``. Keys that several methods share, in a file or a study's base, may stay.
        """
        readers = _read_by()
        for key in (path.partition(".")[0] for path in given):
            if self.method not in readers.get(key, (self.method,)):
                read = ", ".join(readers[key][:3])
                raise UsageError(f"{source}: {key}: {self.method} does not read it, it is of {read}; leave it out")

    def _refuse_clashes(self) -> None:
        """Refuse settings that evolution would ignore: its results would name settings that had no effect."""
        if self.precision == "bfloat16" and self.method not in ("eggroll", "hybrid"):
            raise ValueError(f"precision bfloat16 is for eggroll and hybrid; {self.method} computes in float32")
        if self.adaptive_sigma and self.method == "score_es":
            raise ValueError("adaptive_sigma: score_es has a relative sigma that follows the scores; leave it out")
        if self.grid and self.noise_rank > 1:
            raise ValueError(f"grid: its directions have rank 1, noise_rank is {self.noise_rank}; choose one of them")


def forward_passes(config: TrainConfig) -> int:
    """Return how often a head scores a batch in a whole training: methods of equal steps differ in these.

    Each perturbed head and each individual counts. A step of gradients has one pass, and so has one of ``score_es``,
    which perturbs the scores of that pass.
    """
    steps, evolved = config.num_steps, config.population_size
    if config.method == "zero_shot":
        return 0
    if config.method == "genetic":
        return steps * config.genetic.individuals
    if config.method == "hybrid":
        return config.handoff * evolved + steps - config.handoff
    return steps * (evolved if config.method == "eggroll" else 1)
