"""Configuration of a classic cross-encoder: an encoder with one output, lists of documents, a listwise loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from unimoe.config import BM25Config
from unimoe.config.base import Count, Fraction, Name, Positive, Section
from unimoe.config.losses import LOSSES, RankingLoss
from unimoe.config.training import Tracker
from unimoe.data.published import MS_MARCO_LISTS
from unimoe.studies.common.adapters import AdapterConfig
from unimoe.studies.common.splits import SplitConfig


class CrossEncoderModelConfig(Section):
    """The model to train.

    Attributes:
        base: an encoder by hub id, a folder (of transformers or of sentence-transformers), or
            ``bundled:all-minilm-l6-v2``; it gets a head of one output. A cross-encoder of one output is trained on.
        revision: the hub revision; null for the newest.
        max_length: tokens of query and document together; the longer of the two is cut.
        frozen_layers: freeze this many lower layers, and the embeddings with them.
        trust_remote_code: runs code from the model's repository; leave it off unless you have read that code.
    """

    base: str = "microsoft/MiniLM-L12-H384-uncased"
    revision: str | None = None
    max_length: Annotated[int, Field(ge=8)] = 512
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    trust_remote_code: bool = False


class ListsConfig(Section):
    """The lists to train on.

    Attributes:
        source: ``ms_marco_v1.1`` of the hub, or a collection of the catalogue.
        splits: the train, dev and test queries of a collection; null for the published splits.
        queries: at most this many lists, a fixed sample; null for all.
        max_docs: at most this many documents in a list; null for all of them.
        max_positives: at most this many relevant documents in a list, the best grades first; null for half of
            ``max_docs``. Only for collections.
        negatives_from: draw the negatives from this many BM25 candidates, in their order. Only for collections.
        held_out: number of MS MARCO's lists that do not train and choose the checkpoint.
        bm25: BM25's parameters.
    """

    source: str = MS_MARCO_LISTS
    splits: SplitConfig | None = None
    queries: Count | None = None
    max_docs: Annotated[int, Field(ge=2)] | None = None
    max_positives: Count | None = None
    negatives_from: Count = 100
    held_out: Count = 1000
    bm25: BM25Config = BM25Config()

    @model_validator(mode="after")
    def _room_for_a_negative(self) -> ListsConfig:
        if self.max_docs is not None and self.max_positives is not None and self.max_positives >= self.max_docs:
            raise ValueError(f"max_positives {self.max_positives} must be below max_docs {self.max_docs}")
        return self


class RerankingConfig(Section):
    """The collections with the BM25 candidates to rerank, to choose the checkpoint and to report it.

    Attributes:
        dev: collections: their mean nDCG@10 chooses the checkpoint, with ``@split`` at the end where that is not test;
            empty for the dev part of the source.
        test: collections to report, named in the same way; empty for the test split of the source, which
            needs none otherwise.
        reports_dev: report the queries that choose the checkpoint too, as the first recipe does: a caveat of every
            result. Else a query in both is refused.
        depth: candidates of a query.
        dev_queries: queries of each dev collection, a fixed sample; null for all.
        test_queries: queries of each test collection, a fixed sample; null for all. Results record the number.
        batch_size: pairs of one forward pass.
    """

    dev: list[str] = Field(default_factory=list)
    test: list[str] = Field(default_factory=list)
    reports_dev: bool = False
    depth: Count = 100
    dev_queries: Count | None = None
    test_queries: Count | None = None
    batch_size: Count = 32


class CrossEncoderConfig(Section):
    """One training of a cross-encoder, and its evaluation. The defaults are the project's first recipe.

    Attributes:
        name: the experiment's name, recorded in every result; one ``output_dir`` for each experiment.
        arm: name of the trained model in results.
        lora: train adapters on the base, and the head; null trains the weights themselves.
        drop_shared: leave out of training what dev or test have too, by text, instead of a caveat or a refusal.
        loss: by name, or a section with name and keys.
        mini_batch_size: pairs of one forward pass in training: null for as many as the lists of a step, 0 for all.
        epochs: passes over the lists.
        max_steps: optimizer steps, instead of ``epochs``.
        batch_size: lists of one step.
        learning_rate: the peak; it decays linearly to 0.
        warmup_ratio: share of the steps in which it rises.
        seed: set before the head is initialised, and again for dropout and the order of lists.
        eval_every: steps between evaluations on dev, each followed by a saved state; a killed run loses at most these.
        dtype: dtype of the forward passes in training; weights are float32. ``auto``: bfloat16 on a GPU that has it.
        push_to_hub: repository to upload the finished model to; null for none.
        tracking: trackers that receive the log, in addition to ``logs/train.jsonl``.
        caveats: reasons why results are unfit for decisions, copied into every result.
        output_dir: folder of checkpoint, logs and results.
        weight_decay: AdamW's weight decay.
        max_grad_norm: gradients are clipped to this norm.
    """

    name: Name = "cross_encoder"
    output_dir: str = "outputs/cross_encoder"
    arm: Name = "cross_encoder"
    model: CrossEncoderModelConfig = CrossEncoderModelConfig()
    lora: AdapterConfig | None = None
    loss: RankingLoss = Field(default_factory=lambda: LOSSES["plistmle"]())
    mini_batch_size: Annotated[int, Field(ge=0)] | None = 16
    lists: ListsConfig = ListsConfig()
    evaluation: RerankingConfig = RerankingConfig()
    drop_shared: bool = False
    epochs: Positive = 1.0
    max_steps: Count | None = None
    batch_size: Count = 16
    learning_rate: Positive = 2e-5
    warmup_ratio: Fraction = 0.1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 12
    eval_every: Count = 500
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    tracking: list[Tracker] = Field(default_factory=list)
    push_to_hub: str | None = None
    caveats: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_way_to_freeze(self) -> CrossEncoderConfig:
        if self.lora and self.model.frozen_layers:
            raise ValueError("lora freezes the whole base and adapts it; leave out model.frozen_layers")
        return self
