"""Configuration of bi-encoder training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from unimoe.config import BM25Config
from unimoe.config.base import Count, EncoderConfig, MetricName, Name, Positive, Section, Width
from unimoe.config.training import Schedule, Tracker
from unimoe.studies.common.adapters import AdapterConfig
from unimoe.studies.common.splits import SplitConfig

Whole = Annotated[int, Field(ge=0)]


class ContrastiveConfig(Section):
    """InfoNCE over the documents of a batch.

    Attributes:
        temperature: divides the cosines.
        margin: subtracted from the cosine of a positive before the division (LaBSE's additive margin); 0 for none.
        symmetric: average with the loss of documents that search for their queries.
        known_positives: treatment of a document of another row that is judged relevant to a query, but was not drawn
            for it. ``mask`` leaves it out: a softmax over several targets would demand equal cosines with all of them.
            ``positive`` adds it to the targets, ``negative`` makes it a negative in spite of the judgment.
    """

    temperature: Positive = 0.05
    margin: Annotated[float, Field(ge=0, lt=2)] = 0.1
    symmetric: bool = True
    known_positives: Literal["mask", "positive", "negative"] = "mask"


class NegativesConfig(Section):
    """Hard negatives, in addition to the other documents of the batch.

    Attributes:
        per_query: number drawn for every query in every epoch; 0 for none.
        source: finds the first ones: ``bm25``, or the ``model`` before training.
        depth: draw from this many of the best documents that are not judged relevant.
        skip: leave out this many of the best, which are often relevant without a judgment.
        refresh_every: epochs after which the current model finds new ones; null for never.
    """

    per_query: Whole = 0
    source: Literal["bm25", "model"] = "bm25"
    depth: Count = 50
    skip: Whole = 0
    refresh_every: Count | None = None
    bm25: BM25Config = BM25Config()

    @model_validator(mode="after")
    def _something_to_draw_from(self) -> NegativesConfig:
        if self.depth - self.skip < self.per_query:
            raise ValueError(f"depth {self.depth} without the first {self.skip} leaves fewer than {self.per_query}")
        return self


class BiEncoderDevConfig(Section):
    """The choice of the epoch: dense retrieval on the dev queries, before training and after every epoch.

    Attributes:
        metric: as ``evaluate-run`` names it.
        queries: number of dev queries, a fixed sample; null for all of them.
        pool: number of documents searched, a fixed sample that holds the relevant ones; null for the whole corpus.
        patience: stop after this many epochs without a new best; null for never.
    """

    metric: MetricName = "recall_of_retrieved@10"
    queries: Count | None = None
    pool: Count | None = None
    patience: Count | None = None


class BiEncoderConfig(Section):
    """One training of a bi-encoder.

    Attributes:
        arm: its name in results.
        collection: a name of the catalogue.
        splits: the train, dev and test queries; null for the published splits where there is a train split, else for
            parts of the test split.
        drop_shared: leave out of training what dev or test have too, by text, instead of a caveat or a refusal.
        corpus_sample: number of documents, a fixed sample that holds the relevant ones of all three splits; null for
            the whole corpus.
        relevance_threshold: the lowest grade that counts as relevant.
        train_queries: number of training queries, a fixed sample; null for all of them.
        encoder: the base that is trained; ``pooling`` is one of its keys.
        out_dim: rows of a linear layer without bias after the pooling; null for none.
        head_init: first weights of that layer. ``orthogonal`` keeps cosines where ``out_dim`` is the hidden size, and
            approximately below it; ``uniform`` is torch's own.
        freeze_base: train the linear layer alone; embeddings of the base are then computed once.
        frozen_layers: freeze the embeddings and this many of the lowest layers; 0 trains everything.
        lora: train adapters on the base, and the linear layer; null trains the weights themselves.
        query_length: tokens of a query; null for the encoder's limit.
        document_length: tokens of a document; null for the encoder's limit.
        loss: the loss of a batch.
        batch_size: queries of one batch; the documents of the others are a query's negatives.
        accumulation: batches of one optimizer step.
        chunk_size: texts of one forward pass where a whole batch does not fit in memory (gradient caching: the same
            gradient, one more forward pass); null for whole batches.
        negatives: hard negatives.
        epochs: passes over the training queries, each with one positive drawn at random.
        schedule: how the learning rate changes after the warm-up.
        warmup: share of the steps in which the learning rate rises.
        learning_rate: peak, of AdamW.
        weight_decay: AdamW's weight decay.
        max_grad_norm: gradients are clipped to this norm.
        dropout: use the encoder's; false for none.
        precision: ``auto`` computes in bfloat16 where a probe finds that faster; weights stay float32.
        dev: the choice of the epoch.
        seed: decides batches, draws, dropout and the linear layer's first weights.
        save_every: steps between saved states; null saves after every epoch alone.
        tracking: trackers that receive the log, in addition to ``logs/train.jsonl``.
        output_dir: one folder for each base model.
        caveats: reasons why results are unfit for decisions.
    """

    arm: Name = "biencoder"
    collection: str = "scifact"
    splits: SplitConfig | None = None
    drop_shared: bool = False
    corpus_sample: Count | None = None
    relevance_threshold: Count = 1
    train_queries: Count | None = None
    encoder: EncoderConfig = EncoderConfig(base="microsoft/deberta-v3-small")
    out_dim: Width | None = 256
    head_init: Literal["orthogonal", "uniform"] = "orthogonal"
    freeze_base: bool = False
    frozen_layers: Whole = 0
    lora: AdapterConfig | None = None
    query_length: Annotated[int, Field(ge=4)] | None = 32
    document_length: Annotated[int, Field(ge=4)] | None = 128
    loss: ContrastiveConfig = ContrastiveConfig()
    batch_size: Annotated[int, Field(ge=2)] = 32
    accumulation: Count = 1
    chunk_size: Count | None = None
    negatives: NegativesConfig = NegativesConfig()
    epochs: Count = 3
    schedule: Schedule = "cosine"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    learning_rate: Positive = 2e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: Positive = 1.0
    dropout: bool = True
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    dev: BiEncoderDevConfig = BiEncoderDevConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    save_every: Count | None = None
    tracking: list[Tracker] = Field(default_factory=list)
    output_dir: str = "outputs/biencoder"
    caveats: list[str] = Field(default_factory=list)

    @property
    def max_length(self) -> int | None:
        """Tokens of any text; None for the encoder's limit."""
        lengths = (self.query_length, self.document_length)
        return None if None in lengths else max(length for length in lengths if length is not None)

    @model_validator(mode="after")
    def _something_to_train(self) -> BiEncoderConfig:
        if self.freeze_base and self.out_dim is None:
            raise ValueError("freeze_base leaves nothing to train without out_dim; set one of them")
        if self.freeze_base and self.frozen_layers:
            raise ValueError("frozen_layers has no effect with freeze_base; leave one of them out")
        if self.lora and (self.freeze_base or self.frozen_layers):
            raise ValueError("lora freezes the whole base and adapts it; leave out freeze_base and frozen_layers")
        return self
