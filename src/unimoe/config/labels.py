"""The config of judgments that a model makes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from unimoe.config import BM25Config, PromptConfig
from unimoe.config.base import Count, Fraction, Section
from unimoe.config.listwise import ListwiseConfig
from unimoe.config.served import ServedConfig


class SamplingConfig(Section):
    """The choice of queries to label.

    Attributes:
        queries: at most this many, a seeded sample; null for all that pass.
        min_words: fewest words of a query.
        max_words: most words of a query.
        characters: most characters of a query.
        letters: smallest share of letters and digits among the characters that are not white space.
        seed: decides the sample.
    """

    queries: Count | None = 200
    min_words: Count = 2
    max_words: Count = 32
    characters: Count = 256
    letters: Fraction = 0.7
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _words_in_order(self) -> SamplingConfig:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        return self


class LabelConfig(Section):
    """Judgments of what runs have found: the first documents of each run are pooled, and a model grades the pairs.

    Attributes:
        collection: a name of the catalogue.
        depth: documents of a query: the first ones of each run, or candidates.
        reranker: any that ``evaluate --model`` takes: a causal language model, ``cross-encoder:``, ``monot5:``,
            ``rankllama:``, the checkpoint folder of an arm, ``python:MODULE:FUNCTION``, or the address of a server. One
            that orders lists, as ``listwise:``, labels data to train on: a grade is the number of documents after it.
        served: how a server is asked; ``served.api`` ``chat`` asks a chat model for grades from 0 to 3.
        listwise: how ``listwise:`` and ``reasoning:`` models are asked.
        prompt: the prompt of a causal language model; null for the model's own. A checkpoint has its own too.
        thresholds: ascending; a pair's grade is the number of them that its P(yes) reaches, 0 for not relevant. A chat
            model grades without them.
        max_length: tokens of one pair; a server has ``served.max_length``.
        shard_queries: queries that are graded together; a killed run loses the pairs in work alone.
    """

    collection: str
    depth: Count = 10
    reranker: str = "bundled:smollm2-135m-instruct"
    served: ServedConfig | None = None
    listwise: ListwiseConfig = ListwiseConfig()
    prompt: PromptConfig | None = None
    thresholds: list[Annotated[float, Field(gt=0, le=1)]] = Field(default=[0.25, 0.5, 0.75], min_length=1)
    max_length: Annotated[int, Field(ge=16)] = 512
    shard_queries: Count = 64

    @model_validator(mode="after")
    def _thresholds_ascend(self) -> LabelConfig:
        if any(low >= high for low, high in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise ValueError(f"thresholds {self.thresholds} must ascend")
        return self


class TrainingLabelConfig(LabelConfig):
    """Judgments to train on: queries are sampled, the first stage searches deep, and a model grades the candidates.

    Attributes:
        split: queries to sample, with the judgments that the labels are compared with.
        test_split: its real judgments are copied next to the labels, so that a training on them can be tested; null for
            none.
        sampling: the choice of queries.
        bm25: the first stage's parameters.
    """

    split: str = "train"
    test_split: str | None = None
    sampling: SamplingConfig = SamplingConfig()
    bm25: BM25Config = BM25Config()
    depth: Count = 1000
    thresholds: list[Annotated[float, Field(gt=0, le=1)]] = Field(default=[0.5], min_length=1)
    shard_queries: Count = 8
