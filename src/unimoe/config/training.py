"""How arms are trained: the adapter, the batches, the steps, the arms."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from unimoe.config.base import Count, Positive, Section
from unimoe.config.losses import LossConfig, LossName, LossOptions

ArmTask = Literal["rank_only", "emb_only", "joint"]
Schedule = Literal["linear", "cosine", "constant", "onecycle"]
Tracker = Literal["tensorboard", "wandb"]
AggregationName = Literal["fixed", "uncertainty", "pcgrad", "cagrad", "gradvac", "upgrad"]


class LoraConfig(Section):
    """The adapter.

    Attributes:
        first_layer: adapters sit on this layer (counted from 0) and all above. The layers below stay frozen, so their
            states are computed once for all arms and seeds and no gradient flows there.
    """

    r: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: list[str] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    first_layer: Annotated[int, Field(ge=0)] = 0


class RankingRecipe(Section):
    """One ranking batch: each query with one positive and its negatives, as yes/no judgements.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        loss: ``yes_no`` judges each pair alone, the loss Qwen3-Reranker is fine-tuned with; ``softmax`` sets the gap of
            the positive against those of its negatives, which learns an order in fewer steps; the listwise ones are
            those of ``config.losses``.
        loss_options: of the loss; those that it does not read must keep their defaults.
        negatives_from: hard negatives are drawn from the first this many BM25 candidates.
    """

    queries: Count | None = None
    loss: LossName = "yes_no"
    loss_options: LossOptions = LossOptions()
    queries_per_step: Count = 8
    hard_negatives: Annotated[int, Field(ge=0)] = 3
    random_negatives: Annotated[int, Field(ge=0)] = 0
    negatives_from: Count = 100

    @model_validator(mode="after")
    def _some_negative(self) -> RankingRecipe:
        if self.hard_negatives + self.random_negatives == 0:
            raise ValueError("hard_negatives and random_negatives are both 0; a ranking example needs a negative")
        self.loss_options.refuse_unused(self.loss)
        return self

    @property
    def loss_config(self) -> LossConfig:
        """Name and options of the loss in one."""
        return LossConfig(name=self.loss, **self.loss_options.model_dump())


class EmbeddingRecipe(Section):
    """One embedding batch: InfoNCE over the batch's documents and the hard negatives of its queries.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        negatives_from: hard negatives are drawn from the first this many BM25 candidates.
        temperature: cosines are divided by it.
    """

    queries: Count | None = None
    pairs_per_step: Annotated[int, Field(ge=2)] = 32
    hard_negatives: Annotated[int, Field(ge=0)] = 1
    negatives_from: Count = 100
    temperature: Positive = 0.05


class ConflictConfig(Section):
    """The record of how far the two tasks' gradients agree, for joint arms; it changes no weight.

    Attributes:
        measure: whether ``logs/gradient_conflicts.jsonl`` is written.
        interval: steps from one measurement to the next; the first step is measured.
    """

    measure: bool = True
    interval: Count = 10


class DevConfig(Section):
    """What checkpoints are compared on while an arm is trained.

    Ranking is scored as nDCG@10 of the first stage's candidates reranked, embedding as nDCG@10 over the pool, a joint
    arm by the mean of both: as evaluation does it, on other queries.

    Attributes:
        split: of the training collection.
        queries: judged queries scored, a fixed sample.
        depth: candidates reranked per query.
        pool: documents of dense retrieval: a fixed sample that holds every relevant one; null for the whole corpus.
    """

    split: str = "dev"
    queries: Count = 50
    depth: Count = 10
    pool: Count | None = 500


class TrainingConfig(Section):
    """What every arm of the experiment shares, so that the arms are fair.

    Every arm takes ``steps`` optimizer steps. In each, rank_only sees one ranking batch, emb_only one embedding batch,
    and joint both, the same batches in the same order.

    Attributes:
        collection: where training queries come from.
        token_budget: padded tokens that one backward pass may hold; a larger batch is done in parts.
        batch_size: sequences of one part, instead of ``token_budget``.
        schedule: of the learning rate after the warm-up: ``linear`` and ``cosine`` decay to 0, ``constant`` stays;
            ``onecycle`` is Smith's, cosine up from a 25th of the peak and down to next to nothing.
        warmup_steps: steps of warm-up, linear but for ``onecycle``.
        warmup_ratio: the same as a share of ``steps``, rounded up.
        accumulation_steps: batches whose gradients make one optimizer step. Contrast stays within each batch.
        activation_checkpointing: computes activations anew in the backward pass: less memory, a third more time.
        save_every: steps between saved training states; a killed run loses at most these.
        evaluate_every: steps between evaluations on dev, one at the end besides; the best is kept as
            ``checkpoint-best``. Null for none.
        patience: evaluations in a row without a better score after which training ends; null goes on to the last step.
        dev: what these evaluations score.
        tracking: where to show the log besides ``logs/train.jsonl``.
    """

    collection: str
    split: str = "train"
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
    ranking: RankingRecipe = RankingRecipe()
    embedding: EmbeddingRecipe = EmbeddingRecipe()
    conflicts: ConflictConfig = ConflictConfig()

    @property
    def warmup(self) -> int:
        """Steps of warm-up."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return math.ceil(round(self.warmup_ratio * self.steps, 9))  # .1 * 70 is a little more than 7

    @model_validator(mode="after")
    def _warmup_ends(self) -> TrainingConfig:
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ValueError("warmup_steps and warmup_ratio say the same thing; give one of them")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup} must be below steps {self.steps}")
        return self

    @model_validator(mode="after")
    def _patience_has_something_to_wait_for(self) -> TrainingConfig:
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError("patience counts evaluations on dev, and evaluate_every is not set; set it too")
        return self


class ArmConfig(Section):
    """One arm.

    Attributes:
        learning_rate: peak rate, to be chosen on the dev split.
        ranking_weight: weight of the ranking loss in a joint arm; the embedding loss has the rest.
        aggregation: how a joint arm makes one step of its two weighted losses. ``fixed`` adds them. ``uncertainty``
            starts there and learns the weights (Kendall et al. 2018). ``pcgrad`` (Yu et al. 2020), ``cagrad`` (Liu et
            al. 2021), ``gradvac`` (Wang et al. 2021) and ``upgrad`` (Quinton & Rey 2024) change the gradients where
            they conflict. What each has to beat is ``fixed`` with a ``ranking_weight`` chosen on dev (Kurin et al.
            2022).
        cagrad_c: how far CAGrad may go from the sum of the gradients, in shares of its length; 0 is ``fixed``.
        gradvac_beta: weight of the newest cosine in GradVac's running mean.
    """

    task: ArmTask
    learning_rate: Positive
    ranking_weight: Annotated[float, Field(gt=0, lt=1)] | None = None
    aggregation: AggregationName = "fixed"
    cagrad_c: Annotated[float, Field(ge=0, lt=1)] = 0.5
    gradvac_beta: Annotated[float, Field(gt=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _weight_where_joint(self) -> ArmConfig:
        if self.task == "joint" and self.ranking_weight is None:
            raise ValueError("a joint arm needs ranking_weight, for example 0.5")
        if self.task != "joint" and self.ranking_weight is not None:
            raise ValueError(f"ranking_weight belongs to joint arms, not to {self.task}; remove it")
        if self.task != "joint" and self.aggregation != "fixed":
            raise ValueError(f"aggregation {self.aggregation} belongs to joint arms, not to {self.task}; remove it")
        return self
