"""Random encoders small enough for one unit test, as folders: bare, dense, sparse, and of late interaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from support.tiny_models import HIDDEN, LETTERS, random_model, saved, seeded, tiny_model, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer

from unimoe.config.base import EncoderConfig
from unimoe.models.encoder import SentenceEncoder, load_encoder

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


def save_static_encoder(folder: Path) -> Path:
    """Write random static embeddings, as model2vec's: the mean of a text's token vectors, no transformer."""
    tokenizer = tiny_wordpiece()
    weights = torch.randn(len(tokenizer), 24, generator=torch.Generator().manual_seed(0))
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
