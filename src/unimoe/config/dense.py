"""The config of an evaluation of dense retrieval: the encoder, the search, and its measures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from unimoe.config import EvaluationConfig, MTEBConfig
from unimoe.config.base import Count, EncoderConfig, Name, Section
from unimoe.config.served import ServedConfig


class DenseConfig(Section):
    """How a corpus is embedded and searched, and which queries are scored.

    Attributes:
        depth: documents kept per query, at most.
        cutoffs: K of the Recall@K that is reported.
        relevance_threshold: the lowest grade that counts as relevant.
        query_length: tokens of a query; null for the encoder's limit.
        document_length: tokens of a document; null for the encoder's limit.
        corpus_sample: documents of a seeded sample that includes the relevant ones; null for the whole corpus.
        use_small_eval_set: search a sample of ``subset_size`` documents, for a quick look; results say so.
        subset_size: documents of that sample, which includes the relevant ones.
        test_size: share of the queries that is scored, split by query with ``split_seed``; null scores all.
        split_seed: seed of the sample of the corpus and of the split of the queries.
        backend: ``torch``, or ``faiss`` (flat inner product), which needs the extra of that name.
        storage: the dtype of vectors on disk.
        fuse_depth: candidates of BM25 and of the encoder that reciprocal rank fusion joins; null for no fusion.
        fuse_k: the constant of the fusion.
    """

    depth: Count = 100
    cutoffs: list[Count] = Field(default_factory=lambda: [1, 5, 10, 50], min_length=1)
    relevance_threshold: Count = 1
    query_length: Count | None = None
    document_length: Count | None = None
    corpus_sample: Count | None = None
    use_small_eval_set: bool = False
    subset_size: Count = 500
    test_size: Annotated[float, Field(gt=0, lt=1)] | None = None
    split_seed: Annotated[int, Field(ge=0)] = 42
    backend: Literal["torch", "faiss"] = "torch"
    storage: Literal["float32", "float16"] = "float32"
    fuse_depth: Count | None = 100
    fuse_k: Count = 60

    @model_validator(mode="after")
    def _deep_enough(self) -> DenseConfig:
        if max(self.cutoffs) > self.depth:
            raise ValueError(f"cutoffs go to {max(self.cutoffs)}, depth only to {self.depth}; raise depth")
        return self


class DenseExperiment(Section):
    """An evaluation of dense retrieval: one encoder, or the checkpoint of an arm, on some collections.

    Attributes:
        name: recorded in every result; ``output_dir`` holds one experiment.
        caveats: why results are unfit for decisions; copied into every result.
        output_dir: folder of vectors, results and analysis.
        served: how an encoder behind a server is asked, when ``encoder.base`` is its address; null without one.
    """

    name: Name = "dense"
    output_dir: str = "outputs/dense"
    encoder: EncoderConfig = EncoderConfig()
    retrieval: DenseConfig = DenseConfig()
    evaluation: EvaluationConfig = EvaluationConfig(mteb=MTEBConfig(task_instruction=None))
    served: ServedConfig | None = None
    caveats: list[str] = Field(default_factory=list)
