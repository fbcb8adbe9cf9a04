"""The configs of an experiment with arms and of an evaluation of dense retrieval."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from unimoe.config.base import Count, Dtype, EncoderConfig, Fraction, Name, Precision, Section, Width, checked
from unimoe.config.listwise import ListwiseConfig
from unimoe.config.prompt import TEMPLATES as TEMPLATES
from unimoe.config.prompt import Answer as Answer
from unimoe.config.prompt import PromptConfig as PromptConfig
from unimoe.config.served import ServedConfig
from unimoe.config.training import ArmConfig, LoraConfig, TrainingConfig
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.data.languages import checked_language

FUSION = "fusion"
"""The first stage that fuses BM25 with an encoder's search."""

DENSE = "dense"
SEARCHES = (DENSE, "sparse", "late")
"""The first stages that are a model's search of the whole corpus."""

_BASELINES, _ROLES = ("bm25", "first_stage", "zero_shot"), ("rank_only", "emb_only", "joint")
"""Names, and beginnings of names, that say what an arm is compared with."""


class ModelConfig(Section):
    """The base model.

    Attributes:
        base: a hub id, a folder, or ``bundled:smollm2-135m-instruct``.
        revision: the hub revision; null for the newest.
        dtype: ``auto`` probes for the faster of float32 and bfloat16, or float16 to score on GPUs without bfloat16.
        layers: load so many first decoder layers, and the final norm and output matrix; null for all.
        max_length: tokens of one sequence, prompt included; the document is cut to fit, then the query; results name
            the queries that fill it.
        trust_remote_code: runs code from the model's repository; leave it off unless you have read that code.
        pooling: how the token states of an ``encoder:`` become one vector, such as ``last`` of a decoder; null for its
            own setting.
    """

    base: str
    revision: str | None = None
    layers: Count | None = None
    dtype: Dtype = "auto"
    max_length: Annotated[int, Field(ge=16)] = 512
    trust_remote_code: bool = False
    pooling: Literal["mean", "cls", "last"] | None = None


class BM25Config(Section):
    """BM25's parameters, for candidates and for the hard negatives of training.

    Attributes:
        k1: saturation of a term's frequency, 1000 at most.
        b: how much the length of a document counts, from 0 to 1.
        language: of the documents, such as ``de`` or ``ko``: how words are split and stemmed, and stop words; null for
            the collection's own, which is English where it says nothing.
        stemmer: ``snowball`` for that of the language, where there is one, or ``none``; ``english``, of configs before
            there were languages, is ``snowball``.
    """

    k1: Annotated[float, Field(ge=0, le=1000)] = 0.9
    b: Fraction = 0.4
    language: Annotated[str, checked(checked_language)] | None = None
    stemmer: Annotated[
        Literal["snowball", "none"], BeforeValidator(lambda given: "snowball" if given == "english" else given)
    ] = "snowball"

    @model_serializer(mode="wrap")
    def _as_before_languages(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Trainings are known by a hash of their settings: those in English keep the one they had.
        found = {key: value for key, value in write(self).items() if key != "language" or value is not None}
        return found | ({"stemmer": "english"} if found.get("stemmer") == "snowball" else {})

    def in_language(self, language: str) -> BM25Config:
        """Return these parameters for documents in a language, unless they state another."""
        return self if self.language else self.model_copy(update={"language": language})


class BundledTier(Section):
    """The offline tier, printed in every table.

    Attributes:
        queries: queries of a seeded sample of the split.
        depth: candidates reranked per query.
        pool: documents of dense retrieval, a seeded sample that includes every relevant one.
        collection: any collection, by name.
        split: the queries that are scored.
    """

    collection: str = "apidocs"
    split: Literal["dev", "test"] = "test"
    queries: Count = 60
    depth: Count = 10
    pool: Count = 600


class FusionEncoder(EncoderConfig):
    """The text encoder of a fused first stage.

    Attributes:
        dtype: float32 unless set, so that the candidates do not depend on a probe of the device, as with ``auto``.
    """

    dtype: Dtype = "float32"


class FirstStageModel(FusionEncoder):
    """The model of a first stage ``sparse`` or ``late``, of sentence-transformers.

    Attributes:
        base: a hub id or a folder; needed where the first stage is this one.
        pooling: the model's own.
    """

    base: str = ""
    pooling: Literal["auto"] = "auto"


class FusionConfig(Section):
    """How a first stage fuses BM25 with an encoder's exact search: by reciprocal rank.

    Attributes:
        depth: documents that each of the two rankings gives to the fusion; more where more candidates are asked for.
        k: the constant of the fusion: a document's score is the sum of 1 / (k + rank) over both rankings.
    """

    encoder: FusionEncoder = FusionEncoder()
    depth: Count = 100
    k: Count = 60


def _known_first_stage(setting: str) -> str:
    known = ("bm25s", "rank_bm25", *SEARCHES, FUSION, "official")
    source, _, path = setting.partition(":")
    if setting not in known and (source != "run" or not path.strip()):
        close = did_you_mean(setting, known)
        raise ValueError(f"there is no first stage {setting!r}{close}; write {', '.join(known)} or run:PATH")
    return setting


class MTEBConfig(Section):
    r"""How MTEB's tasks are evaluated: the prefixes of texts, and how large a reranking task may be.

    Attributes:
        max_pairs: a cross-encoder leaves out, and names, tasks with more candidate pairs than this; null for no limit.
        task_instruction: the prefix of queries, and of texts in symmetric tasks, if MTEB has an instruction for the
            task or its type, which replaces ``{instruction}``; with null, queries get ``prompt.query_prefix``. A
            reranker reads the instruction in its prompt, instead of ``prompt.instruction``, which it keeps with null.
        prompts: prefixes that override the others. The first key that fits counts: ``SciFact-query`` (task and role),
            ``SciFact`` or ``STS`` (a task or a type of tasks, all texts except documents), ``query`` or ``document``.
    """

    task_instruction: str | None = "Instruct: {instruction}\nQuery:"
    prompts: dict[str, str] = Field(default={})
    max_pairs: Count | None = 1_000_000

    @model_validator(mode="after")
    def _instruction_has_its_place(self) -> MTEBConfig:
        if self.task_instruction is not None and "{instruction}" not in self.task_instruction:
            raise ValueError("task_instruction must hold {instruction}, which the task's own instruction replaces")
        return self


class Batches(TypedDict, total=False):
    """What one forward pass reads: so many padded tokens, or so many sequences instead."""

    token_budget: int | None
    batch_size: int | None


class EvaluationConfig(Section):
    """How checkpoints are scored.

    Attributes:
        first_stage: the source of candidates: ``bm25s``; ``rank_bm25``; the search of a model, ``dense`` (the encoder
            of ``fusion``), ``sparse`` or ``late``; ``fusion`` of bm25s with an encoder; ``official``, MS MARCO's
            top1000.dev, unordered and reranked whole; or ``run:PATH``, a TREC run, with ``{dataset}`` for the
            collection's name.
        first_stages: several sources for ``unimoe evaluate``, without ``run:PATH``; each system is evaluated on the
            candidates of each, and results call it ``SYSTEM@FIRST_STAGE``.
        datasets: collections for ``unimoe evaluate``, in place of its tier.
        depth: candidates reranked per query, in all tiers except the bundled one.
        passage_words: cut documents into passages of so many words to rerank or to encode, and score each by its best
            passage (MaxP; 150 is usual); null reads the beginning, as far as the model does.
        passage_stride: words from the beginning of a passage to that of the next; null for half of them.
        token_budget: padded tokens of one forward pass; null for a number that suits the device.
        batch_size: sequences of one forward pass, instead of ``token_budget``.
        merge_adapters: add adapters to the weights before scoring, in float32; changes the last bits of scores.
        systems: models evaluated with the arms, by the name that results give them; each is named as with
            ``--model``, such as ``cross-encoder:FOLDER``, and loaded by the ``prompt``, ``model.max_length``,
            ``model.dtype`` and ``served`` of the experiment. They are in every table, and never specialist or joint.
        compile: let torch compile the layers for scoring: a minute, a C++ compiler on a CPU, other last bits.
        varlen: score in half dtypes on a GPU by torch's attention for variable lengths, in place of masks: other last
            bits; its speed has not been measured yet.
    """

    bundled: BundledTier = BundledTier()
    first_stage: Annotated[str, checked(_known_first_stage)] = "bm25s"
    first_stages: list[Literal["bm25s", "rank_bm25", "dense", "sparse", "late", "fusion", "official"]] = Field(
        default=[]
    )
    datasets: list[str] = Field(default=[])
    depth: Count = 100
    passage_words: Count | None = None
    passage_stride: Count | None = None
    token_budget: Count | None = None
    batch_size: Count | None = None
    merge_adapters: bool = False
    compile: bool = False
    varlen: bool = False
    systems: dict[Name, Annotated[str, Field(min_length=1)]] = Field(default={})
    bm25: BM25Config = BM25Config()
    fusion: FusionConfig = FusionConfig()
    sparse: FirstStageModel = FirstStageModel()
    late: FirstStageModel = FirstStageModel()
    mteb: MTEBConfig = MTEBConfig()

    @model_validator(mode="after")
    def _passages_leave_nothing_out(self) -> EvaluationConfig:
        if (self.passage_stride or 0) > (self.passage_words or 0):
            raise ValueError("passage_stride is more than passage_words, and skips words; lower it, or set both")
        return self

    @property
    def batches(self) -> Batches:
        """The arguments of scoring and embedding that size a forward pass."""
        return {"token_budget": self.token_budget, "batch_size": self.batch_size}


class Experiment(Section):
    """An experiment: one base model, one training set, some arms and seeds, one way to evaluate.

    Attributes:
        name: recorded in every result; ``output_dir`` holds one experiment.
        paired_seeds: declares that the arms of one seed share the order of the data and the initial weights, so that
            intervals pair seeds; recorded in every result. Without it seeds are independent.
        pool_runs: declares that all arms vary alike from seed to seed, so that one variance of a run serves all (see
            statistics.md); recorded in every result. For seeds that do not pair.
        gates: a gate file, or the name of a shipped one, copied to ``output_dir`` before there are scores; null for the
            default gates, one for each joint arm and task.
        caveats: why results are unfit for decisions; copied into every result.
        output_dir: folder of checkpoints, results and analysis; one experiment each.
        seeds: a training of every arm for each of them.
    """

    name: Name
    output_dir: str = "outputs"
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
    paired_seeds: bool = False
    pool_runs: bool = False
    model: ModelConfig
    prompt: PromptConfig = PromptConfig()
    lora: LoraConfig = LoraConfig()
    training: TrainingConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    arms: Annotated[dict[Name, ArmConfig], Field(min_length=1)]
    gates: str | None = None
    served: ServedConfig | None = None
    listwise: ListwiseConfig = ListwiseConfig()
    caveats: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _names_and_seeds_differ(self) -> Experiment:
        for name in self.evaluation.systems:
            if name in self.arms or name in _BASELINES or name.startswith(_ROLES):
                raise ValueError(
                    f"evaluation.systems.{name}: this is the name of an arm or a baseline; choose one that is neither, "
                    f"and does not begin with {', '.join(_ROLES)}"
                )
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: a seed is listed twice")
        if self.paired_seeds and self.pool_runs:
            raise ValueError("pool_runs is for seeds that do not pair, and paired_seeds says that they do; set one")
        return self

    def arm_named(self, name: str) -> ArmConfig:
        """Return the arm called ``name``; a UsageError, which names the closest, where there is none."""
        if name not in self.arms:
            hint = did_you_mean(name, self.arms)
            raise UsageError(f"unknown arm {name!r}{hint}; this config has {', '.join(self.arms)}")
        return self.arms[name]


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
        dims: widths to which vectors are cut, each a system of its own at each of the ``precisions``.
        precisions: ``float32``, ``int8``, ``binary``; of the whole vectors where no ``dims`` are given.
        rescore: what ranks the candidates that ``binary`` finds: ``int8`` or ``float32`` vectors.
        rescore_multiplier: so many times ``depth`` candidates are ranked for each query.
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
    dims: list[Width] = Field(default=[])
    precisions: list[Precision] = Field(default=["float32"], min_length=1)
    rescore: Literal["int8", "float32"] = "int8"
    rescore_multiplier: Count = 4

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

    @model_validator(mode="after")
    def _finds_documents(self) -> DenseExperiment:
        if self.evaluation.passage_words and self.retrieval.backend == "faiss":
            raise ValueError("retrieval.backend faiss finds passages, not documents by their best; use torch")
        return self
