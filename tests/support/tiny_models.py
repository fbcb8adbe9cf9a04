"""Random models small enough for one unit test: language models, encoders of every kind, rerankers of each family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from peft import LoraConfig, TaskType, get_peft_model
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, BertTokenizer, PreTrainedTokenizerFast

from unimoe.config import PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.io import hash_parts
from unimoe.models.base import BaseModel
from unimoe.models.encoder import SentenceEncoder, load_encoder
from unimoe.models.matcher import Matcher, SparseModel, load_matcher
from unimoe.models.rerankers.cross_encoder import CrossEncoderReranker, load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head

ModelKind = Literal["llama", "qwen3"]

HIDDEN = 64
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LETTERS = [*map(chr, range(33, 127))]
SENTENCES = [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    "Given a web search query, retrieve relevant passages that answer the query.",
    "the cat sat on the mat while rain fell on the roof of the old house",
    "a quick sort splits the list around a pivot and sorts both halves",
    "system user assistant think Instruct Query Document",
]


def random_model(auto: str, kind: str, vocabulary: int, *, seed: int = 0, **settings: Any) -> Any:
    """A random model of any kind that transformers knows, as its class ``auto`` builds it.

    Equal arguments give equal weights, so large that texts differ clearly in their embeddings.
    """
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
    }
    sizes |= {"num_attention_heads": 4, "initializer_range": 0.2, **settings}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    return seeded(lambda: getattr(transformers, auto).from_config(config), seed)


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    """What ``make`` makes of random numbers of this seed; those of the test go on as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write a model and its tokenizer into a folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_base(kind: ModelKind = "llama", layers: int = 4, seed: int = 0) -> BaseModel:
    """A random causal language model in float32 with a byte-level tokenizer; equal arguments, equal weights."""
    settings: dict[str, Any] = {"num_hidden_layers": layers, "head_dim": HIDDEN // 4, "max_position_embeddings": 1024}
    settings |= {"eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"), "bos_token_id": None}
    settings |= {"pad_token_id": SPECIAL_TOKENS.index("<|pad|>"), "tie_word_embeddings": False, "dtype": "float32"}
    model = tiny_model(kind, seed=seed, **settings)
    weights = hash_parts(weight.numpy().tobytes() for weight in model.state_dict().values())
    return BaseModel(model, tiny_tokenizer(), f"tiny-{kind}@{weights}")


def save_tiny_model(folder: Path, kind: ModelKind = "llama", layers: int = 4, seed: int = 0) -> Path:
    """Write model and tokenizer of ``tiny_base`` into ``folder``, a valid ``model.base`` from then on."""
    base = tiny_base(kind, layers, seed)
    return saved(folder, base.model, base.tokenizer)


def tiny_model(kind: str, **settings: Any) -> Any:
    """A random causal language model of two layers, of any kind that transformers knows, over the tiny tokenizer."""
    settings = {"num_key_value_heads": 2, "pad_token_id": 0, **settings}
    model = random_model("AutoModelForCausalLM", kind, _trained_tokenizer().get_vocab_size(), **settings)
    return model.requires_grad_(False).eval()


def tiny_tokenizer() -> Any:
    """A byte-level tokenizer with ChatML special tokens, in which ``yes`` and ``no`` are one token each."""
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_trained_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|endoftext|>", "<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_sentencepiece(marks: str) -> Any:
    """A tokenizer as Llama 2's, which marks the beginning of a text as it marks spaces.

    Args:
        marks: what counts as a beginning: ``first``, that of the whole text, or ``always``, also what follows a special
            token; ``prepend`` is ``always`` as older files write it.
    """
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always" if marks == "prepend" else marks)
    words = ["yes", "no", "Query:", "Document:", "Relevant:"]
    tokenizer = trained_bpe(metaspace, 500, ["<s>", "</s>", "<|pad|>"], [*LETTERS, "\n"], words)
    if marks == "prepend":
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<|pad|>"
    )


def trained_bpe(
    pre_tokenizer: Any, size: int, special: list[str], alphabet: list[str], words: list[str], **model: Any
) -> Any:
    """A tokenizer trained on the sentences above, in which each of ``words`` is one token.

    These are lines of their own, and many: without a space before them, and merged before anything else.
    """
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES, *words * 100], trainer)
    return tokenizer


@cache
def _trained_tokenizer() -> Any:
    byte_level = pre_tokenizers.ByteLevel
    tokenizer = trained_bpe(
        byte_level(add_prefix_space=False), 400, SPECIAL_TOKENS, byte_level.alphabet(), ["yes", "no"]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


POSITIONS = 64
_TEXT = "the a cat dog sat ran on over mat roof rain old house quick sort list of and in query passage"


def tiny_wordpiece() -> Any:
    """A BERT tokenizer of a few words and all ASCII letters; what it does not know is ``[UNK]``."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), *_TEXT.split()]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    return BertTokenizer(vocab=vocabulary, model_max_length=POSITIONS)


def save_tiny_encoder(folder: Path, kind: str = "bert", auto: str = "AutoModel", **settings: Any) -> Path:
    """Write a random encoder: ``bert``, ``xlm-roberta`` or another kind, bare or with the head of a class."""
    tokenizer = tiny_wordpiece()
    settings = {"max_position_embeddings": POSITIONS, "pad_token_id": tokenizer.pad_token_id, **settings}
    return saved(folder, random_model(auto, kind, len(tokenizer), **settings), tokenizer)


def save_tiny_decoder(folder: Path) -> Path:
    """Write a random Qwen3 without its output layer, with a tokenizer that ends a text with a special token.

    Not with ``<|endoftext|>``: id 0 is the padding here, whose embedding is zero.
    """
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None  # sentence-transformers would write every text as a message
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", tokenizer.convert_tokens_to_ids("<|im_end|>"))]
    )
    return saved(folder, tiny_model("qwen3", max_position_embeddings=POSITIONS).model, tokenizer)


def save_sentence_transformer(bare: Path, folder: Path, *modules: Any, pooling: Any = "mean", **options: Any) -> Path:
    """Save a bare encoder as sentence-transformers does: pooling, then ``modules``; options go to its constructor."""
    transformer = Transformer(str(bare))
    pool = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    SentenceTransformer(modules=[transformer, pool, *modules], device="cpu", **options).save_pretrained(str(folder))
    return folder


def save_static_encoder(folder: Path, seed: int = 0) -> Path:
    """Write random static embeddings, as model2vec's: the mean of a text's token vectors, no transformer."""
    tokenizer = tiny_wordpiece()
    weights = torch.randn(len(tokenizer), 24, generator=torch.Generator().manual_seed(seed))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu").save_pretrained(str(folder))
    return folder


def save_word_encoder(folder: Path) -> Path:
    """Write random embeddings of words, and the mean and the maximum of those of a text."""
    words = ["PADDING_TOKEN", *dict.fromkeys(_TEXT.split())]
    weights = torch.randn(len(words), 12, generator=torch.Generator().manual_seed(0))
    modules = [WordEmbeddings(WhitespaceTokenizer(words, stop_words=[]), weights), Pooling(12, ("mean", "max"))]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def load(base: Path | str, **settings: Any) -> SentenceEncoder:
    """An encoder on the CPU in float32."""
    return load_encoder(EncoderConfig(base=str(base), **settings), torch.device("cpu"), torch.float32)


def load_sparse(base: Path | str, **settings: Any) -> Matcher:
    """A sparse encoder on the CPU in float32."""
    return load_matcher(SparseModel, "--model", EncoderConfig(base=str(base), **settings), CPU, FLOAT)


def save_tiny_mlm(folder: Path) -> Path:
    """Write a random masked language model, which the library reads as SPLADE."""
    return save_tiny_encoder(folder, auto="AutoModelForMaskedLM")


def save_tiny_splade(folder: Path, bare: Path, **settings: Any) -> Path:
    """Write SPLADE on a random masked language model."""
    model = SparseEncoder(str(save_tiny_mlm(bare)), device="cpu", **settings)
    model.save_pretrained(str(folder))
    return folder


def save_tiny_inference_free(folder: Path, bare: Path) -> Path:
    """Write SPLADE whose queries are weights of words, without a model."""
    documents: Any = SparseEncoder(str(save_tiny_mlm(bare)), device="cpu")
    tokenizer = tiny_wordpiece()
    queries = SparseStaticEmbedding(tokenizer, weight=torch.linspace(0.1, 2, len(tokenizer)))
    router = Router.for_query_document([queries], list(documents))
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(folder))
    return folder


def save_tiny_colbert(folder: Path, bare: Path, *, expand: int | None = None, **settings: Any) -> Path:
    """Write ColBERT on a random encoder: prefixes, a skip list, and queries expanded to a number of tokens."""
    expansion: Any = expand and {"strategy": "fixed", "attend": False, "length": expand}
    transformer = Transformer(str(save_tiny_encoder(bare)), query_expansion=expansion, document_length=40)
    place: dict[str, Any] = {"module_input_name": "token_embeddings"}
    dense = seeded(lambda: Dense(HIDDEN, 16, bias=False, activation_function=torch.nn.Identity(), **place))
    modules = [transformer, dense, MultiVectorMask(skiplist_words=[".", ","]), Normalize(**place)]
    prompts = {"query": "query ", "document": "passage "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts, **settings).save_pretrained(str(folder))
    return folder


PAIRS = [
    (query, document)
    for query in ("what sorts a list", "où est le chat? 🐈", "")
    for document in (
        "a quick sort splits the list around a pivot and sorts both halves",
        "",
        "the cat sat on the mat while rain fell on the roof of the old house",
        "القط على الحصيرة",
    )
]
"""Pairs that fit into 300 tokens of the byte-level tokenizer."""


def save_tiny_cross_encoder(folder: Path, labels: int = 1, **settings: Any) -> Path:
    """Write a random BERT with a head, as ``save_pretrained`` of sentence-transformers and transformers leave it."""
    return save_tiny_encoder(folder, auto="AutoModelForSequenceClassification", num_labels=labels, **settings)


def save_tiny_dense_cross_encoder(folder: Path, bare: Path, labels: int = 1) -> Path:
    """Write a cross-encoder whose head is a module of sentence-transformers behind a pooled encoder, from ``bare``."""
    transformer = Transformer(str(bare))
    places: dict[str, Any] = {"module_input_name": "sentence_embedding", "module_output_name": "scores"}
    head = seeded(lambda: Dense(HIDDEN, labels, activation_function=torch.nn.Identity(), **places))
    modules = [transformer, Pooling(HIDDEN, pooling_mode="mean"), head]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def save_tiny_t5(folder: Path) -> Path:
    """Write a random T5 whose tokenizer knows ``true`` and ``false`` as one token each."""
    tokenizer = tiny_t5_tokenizer()
    sizes = {"d_model": HIDDEN, "d_kv": HIDDEN // 4, "d_ff": 2 * HIDDEN, "num_layers": 2, "num_heads": 4}
    places = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    places["eos_token_id"] = tokenizer.eos_token_id
    model = random_model("AutoModelForSeq2SeqLM", "t5", len(tokenizer), **sizes, **places, initializer_factor=2.0)
    return saved(folder, model, tokenizer)


def tiny_t5_tokenizer() -> Any:
    """A tokenizer as T5's: words with a mark before them, and the end of a text after it."""
    words = ["true", "false", "yes", "no", "Query:", "Document:", "Relevant:"]
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer = trained_bpe(pre_tokenizers.Metaspace(), 500, special, LETTERS, words, unk_token="<unk>")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def save_tiny_score_head(folder: Path, kind: str = "llama") -> Path:
    """Write a random decoder with a score head, whose tokenizer puts a first token before both texts of a pair."""
    return _save_decoder(folder, "AutoModelForSequenceClassification", kind, num_labels=1)


def _save_decoder(folder: Path, auto: str, kind: str = "llama", **settings: Any) -> Path:
    tokenizer = llama_like_tokenizer()
    settings |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": tokenizer.pad_token_id}
    return saved(folder, random_model(auto, kind, len(tokenizer), **settings), tokenizer)


def save_tiny_score_adapter(base: Path, folder: Path) -> Path:
    """Write an adapter with a head for a causal language model in ``base``, as RankLLaMA is published."""
    _save_decoder(base, "AutoModelForCausalLM")
    classifier: Any = AutoModelForSequenceClassification
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    seeded(lambda: get_peft_model(classifier.from_pretrained(base, num_labels=1), lora)).save_pretrained(folder)
    return folder


def save_tiny_lora(base: Path, folder: Path, auto: str = "AutoModelForCausalLM", **settings: Any) -> Path:
    """Write a random LoRA adapter of a saved model, as PEFT does: without tokenizer or configuration."""
    lora = LoraConfig(**{"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"], **settings})
    labels = {"num_labels": 1} if auto.endswith("SequenceClassification") else {}
    model = getattr(transformers, auto).from_pretrained(base, **labels)
    adapted: Any = seeded(lambda: get_peft_model(model, lora))
    for name, weight in sorted(adapted.named_parameters()):
        if weight.requires_grad and "lora_" in name:  # B is zero at the start
            weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) / 10
    adapted.save_pretrained(folder)
    return folder


def save_library_lora(base: Path, folder: Path, kind: Any = SentenceTransformer, task: str | None = None) -> Path:
    """Write a random LoRA adapter of a BERT, as sentence-transformers does after ``add_adapter``."""
    model = kind(str(base), device="cpu")
    lora = LoraConfig(task_type=task, r=4, target_modules=["query", "value"], init_lora_weights=False)
    seeded(lambda: model.add_adapter(lora))
    model.save_pretrained(str(folder))
    return folder


def llama_like_tokenizer() -> Any:
    """The byte-level tokenizer, with a first token before each text of a pair, as Llama's."""
    tokenizer = tiny_tokenizer()
    first = "<|im_start|>"
    tokenizer.bos_token = first
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1",
        special_tokens=[(first, tokenizer.convert_tokens_to_ids(first))],
    )  # fmt: skip
    return tokenizer


Scorer = Callable[[Path], tuple[Callable[[], Sequence[float]], Any]]
"""Saves a model to a folder and loads it; returns what scores all pairs twice, and the module of torch that it runs."""

CPU, FLOAT = torch.device("cpu"), torch.float32


def _encoder(folder: Path) -> Any:
    model = load(save_tiny_encoder(folder))
    texts = [f"{document} {query}" for query, document in PAIRS] * 2
    return lambda: model.encode(texts)[:, 0].tolist(), model.model.transformers_model


def _mono_t5(folder: Path) -> Any:
    model = load_mono_t5(save_tiny_t5(folder), PromptConfig(), 64, CPU, FLOAT)
    sequences = model.pair_ids(PAIRS * 2)
    return lambda: model.rerank_ids(sequences).tolist(), model.model


def _score_head(folder: Path) -> Any:
    model = load_score_head(save_tiny_score_head(folder), 300, CPU, FLOAT)
    sequences = model.pair_ids(PAIRS * 2)
    return lambda: model.rerank_ids(sequences).tolist(), model.model


def _cross_encoder(folder: Path) -> Any:
    loaded: Any = load_cross_encoder(save_tiny_cross_encoder(folder), CPU, FLOAT, 64)
    model = CrossEncoderReranker(loaded, 32)
    return lambda: model.score(PAIRS * 2), loaded[0].model


SCORERS: dict[str, Scorer] = {
    "encoder": _encoder,
    "monot5": _mono_t5,
    "score head": _score_head,
    "cross-encoder": _cross_encoder,
}
