"""Configuration of training: the adapter, the batches, the steps, the arms."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from unimoe.config.base import Count, Positive, Section
from unimoe.config.losses import LOSSES, Loss, RankingLoss
from unimoe.core.errors import UsageError

ArmTask = Literal["rank_only", "emb_only", "joint"]
Schedule = Literal["linear", "cosine", "constant", "onecycle"]
Tracker = Literal["tensorboard", "wandb"]
AggregationName = Literal["fixed", "uncertainty", "pcgrad", "ortho_lora", "cagrad", "gradvac"]


def _layer_or_share(value: Any) -> Any:
    if (type(value) is int and value >= 0) or (type(value) is float and 0 < value < 1):
        return value
    raise ValueError("give a layer, counted from 0, or a share of the layers between 0 and 1, such as 0.5")


class LoraConfig(Section):
    """The adapter.

    Attributes:
        first_layer: adapt this layer (counted from 0) and all above; the states of the frozen layers below are computed
            once for all arms and seeds. A number between 0 and 1 is a share of the layers: of 16, 0.5 freezes 8.
        r: rank of the adapters.
        alpha: scale of the adapters; they are multiplied by ``alpha / r``.
        dropout: probability of dropout on each adapter's input, in training.
        target_modules: names of the linear layers that get an adapter.
    """

    r: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: list[str] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    first_layer: Annotated[int | float, BeforeValidator(_layer_or_share)] = 0

    def first_of(self, layers: int) -> int:
        """Return the lowest layer with adapters in a model of so many layers, a share as the nearest layer."""
        if isinstance(self.first_layer, float):
            return min(math.floor(self.first_layer * layers + 0.5), layers - 1)
        if self.first_layer >= layers:
            raise UsageError(
                f"lora.first_layer {self.first_layer}: this model has layers 0 to {layers - 1}, {layers} in all; give "
                "one of them, or a share of them such as 0.5"
            )
        return self.first_layer


class RankingRecipe(Section):
    """One ranking batch: each query with one positive and its negatives, as yes/no judgements.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        loss: by name, or a section with name and keys. ``yes_no`` judges each pair alone, as Qwen3-Reranker's training;
            ``softmax`` compares the positive with its negatives, which learns an order in fewer steps.
        negatives_from: draw hard negatives from this many of the best BM25 candidates.
        queries_per_step: queries of one ranking batch.
        hard_negatives: negatives of each query from BM25.
        random_negatives: negatives of each query from the whole collection.
        neighbours: group each query with so many others that have a positive among its BM25 candidates, if any, and
            rank it against the positives of its group, those relevant to it left out. A group is in one batch, so that
            with ``document_first`` prompts each document is computed once. ``queries_per_step`` is a multiple of a
            group's size; queries beyond the last whole group are not used.
    """

    queries: Count | None = None
    loss: RankingLoss = Field(default_factory=lambda: LOSSES["yes_no"]())
    queries_per_step: Count = 8
    hard_negatives: Annotated[int, Field(ge=0)] = 3
    random_negatives: Annotated[int, Field(ge=0)] = 0
    negatives_from: Count = 100
    neighbours: Count | None = None

    @property
    def group(self) -> int:
        """Queries that share a batch: a query and its neighbours."""
        return 1 + (self.neighbours or 0)

    @model_validator(mode="after")
    def _some_negative(self) -> RankingRecipe:
        if self.hard_negatives + self.random_negatives == 0 and not self.neighbours:
            raise ValueError("hard_negatives and random_negatives are both 0; a ranking example needs a negative")
        if self.queries_per_step % self.group:
            raise ValueError(
                f"queries_per_step {self.queries_per_step} cuts groups of {self.group} queries ({self.neighbours} "
                f"neighbours and the query); make it a multiple of {self.group}"
            )
        return self


class EmbeddingRecipe(Section):
    """One embedding batch: InfoNCE over the batch's documents and the hard negatives of its queries.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        negatives_from: draw hard negatives from this many of the best BM25 candidates.
        temperature: divides the cosines.
        pairs_per_step: queries, each with one positive, of one embedding batch.
        hard_negatives: negatives of each query from BM25; the batch gives the others.
    """

    queries: Count | None = None
    pairs_per_step: Annotated[int, Field(ge=2)] = 32
    hard_negatives: Annotated[int, Field(ge=0)] = 1
    negatives_from: Count = 100
    temperature: Positive = 0.05


class ConflictConfig(Section):
    """The record of how well the two tasks' gradients agree, for joint arms; it changes no weight.

    Attributes:
        measure: whether ``logs/gradient_conflicts.jsonl`` is written.
        interval: steps between measurements, from the first step on.
    """

    measure: bool = True
    interval: Count = 10


class DevConfig(Section):
    """The queries that compare the checkpoints of an arm during its training.

    Ranking is scored by nDCG@10 of the reranked first stage, embedding by nDCG@10 over the pool, joint by their mean.

    Attributes:
        split: a split of the training collection.
        queries: number of judged queries, a fixed sample.
        depth: candidates reranked per query.
        pool: documents of dense retrieval, a fixed sample that holds the relevant ones; null for the whole corpus.
    """

    split: str = "dev"
    queries: Count = 50
    depth: Count = 10
    pool: Count | None = 500


class TrainingConfig(Section):
    """Settings that all arms of the experiment share, so that their comparison is fair.

    Every arm takes ``steps`` optimizer steps. In each, rank_only sees one ranking batch, emb_only one embedding batch,
    and joint both, the same batches in the same order.

    Attributes:
        collection: the collection of the training queries.
        token_budget: most padded tokens of one backward pass; a larger batch is done in parts.
        batch_size: sequences of one part; replaces ``token_budget``.
        schedule: the learning rate after the warm-up: ``linear`` and ``cosine`` decay to 0, ``constant`` stays;
            ``onecycle`` is Smith's: a cosine up from a 25th of the peak and down to a 250,000th.
        warmup_steps: steps of the warm-up, which is linear except in ``onecycle``.
        warmup_ratio: warm-up as a share of ``steps``, rounded up.
        accumulation_steps: batches of one optimizer step. InfoNCE takes negatives from its own batch only.
        activation_checkpointing: recompute activations in the backward pass: less memory, a third more time.
        save_every: steps between saved training states; a killed run loses at most these.
        evaluate_every: steps between evaluations on dev, which keep ``checkpoint-best``, with one before training and
            one at the end; null for none.
        patience: stop after this many evaluations without a better score, that before training included; null for
            never.
        tracking: trackers that receive the log, in addition to ``logs/train.jsonl``.
        split: the split of the queries that train.
        drop_shared: leave out of training what dev or the reported queries have too, by text, instead of refusing it.
        steps: optimizer steps of every arm.
        weight_decay: AdamW's weight decay.
        max_grad_norm: gradients are clipped to this norm.
    """

    collection: str
    split: str = "train"
    drop_shared: bool = False
    steps: Count
    schedule: Schedule = "linear"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] | None = None
    accumulation_steps: Count = 1
    activation_checkpointing: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive = 1.0
    token_budget: Count = 16384
    batch_size: Count | None = None
    save_every: Count = 10
    evaluate_every: Count | None = None
    patience: Count | None = None
    dev: DevConfig = DevConfig()
    tracking: list[Tracker] = Field(default=[])
    ranking: RankingRecipe = Field(default_factory=RankingRecipe)
    embedding: EmbeddingRecipe = EmbeddingRecipe()
    conflicts: ConflictConfig = ConflictConfig()

    @property
    def warmup(self) -> int:
        """Steps of warm-up."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return math.ceil(round(self.warmup_ratio * self.steps, 9))  # .1 * 70 is a little more than 7

    @model_validator(mode="after")
    def _steps_agree(self) -> TrainingConfig:
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ValueError("warmup_steps and warmup_ratio exclude each other; give one of them")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup} must be below steps {self.steps}")
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError("patience counts evaluations on dev, but evaluate_every is not set; set it too")
        return self


class ArmConfig(Section):
    """One arm of the experiment.

    Attributes:
        learning_rate: peak rate, to be chosen on the dev split.
        loss: of the ranking batches, in place of ``training.ranking.loss``, to compare losses on the same examples.
        ranking_weight: weight of the ranking loss in a joint arm; the embedding loss has the rest.
        aggregation: combines the two weighted losses of a joint arm in one step. ``fixed`` adds them. ``uncertainty``
            starts there and learns the weights (Kendall et al. 2018); their sum need not stay 1. ``pcgrad`` (Yu et al.
            2020) changes the gradients where they conflict, ``ortho_lora`` (Yang et al. 2026) in each adapter matrix by
            itself, ``gradvac`` (Wang et al. 2021) where their cosine is below its running mean. ``cagrad`` (Liu et al.
            2021) changes their sum everywhere. Each needs a ``learning_rate`` chosen on dev, and as its baseline
            ``fixed`` with a ``ranking_weight`` chosen on dev (Kurin et al. 2022).
        uncertainty_learning_rate: about how far each step of Adam moves the log-variances that ``uncertainty`` learns;
            far above the adapters' rate, because they have to go by about 1, and without a schedule.
        cagrad_c: distance of CAGrad's step from the sum of the gradients, as a share of its length, with and without a
            conflict: equal gradients give ``1 + cagrad_c`` times their sum. 0 is ``fixed``.
        gradvac_beta: weight of the newest cosine in GradVac's running mean, which starts at 0; .01 in the paper.
    """

    task: ArmTask
    learning_rate: Positive
    ranking_weight: Annotated[float, Field(gt=0, lt=1)] | None = None
    aggregation: AggregationName = "fixed"
    uncertainty_learning_rate: Positive = 0.05
    cagrad_c: Annotated[float, Field(ge=0, lt=1)] = 0.5
    gradvac_beta: Annotated[float, Field(gt=0, le=1)] = 0.1
    loss: RankingLoss | None = None

    @model_validator(mode="after")
    def _settings_suit_the_task(self) -> ArmConfig:
        if self.task == "joint" and self.ranking_weight is None:
            raise ValueError("a joint arm needs ranking_weight, for example 0.5")
        if self.task != "joint" and self.ranking_weight is not None:
            raise ValueError(f"ranking_weight belongs to joint arms, not to {self.task}; remove it")
        if self.task != "joint" and self.aggregation != "fixed":
            raise ValueError(f"aggregation {self.aggregation} belongs to joint arms, not to {self.task}; remove it")
        if self.task == "emb_only" and self.loss is not None:
            raise ValueError("loss is the ranking loss, and an emb_only arm does not rank; remove it")
        return self

    def ranking_loss(self, shared: RankingRecipe) -> Loss:
        """Return the arm's ranking loss: its own, or the one that all arms share."""
        return shared.loss if self.loss is None else self.loss
