"""Random encoders small enough to load and run inside one unit test, as bare models and as sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.tiny_models import saved, seeded, tiny_model, tiny_sizes, tiny_tokenizer

from unimoe.config.base import EncoderConfig
from unimoe.models.encoder import SentenceEncoder, load_encoder

POSITIONS = 64
_TEXT = "the a cat dog sat ran on over mat roof rain old house quick sort list of and in query passage"


def tiny_wordpiece() -> Any:
    """A BERT tokenizer of a few words and all ASCII letters; what it does not know is ``[UNK]``."""
    from transformers import BertTokenizer

    letters = [chr(code) for code in range(33, 127)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *letters, *(f"##{letter}" for letter in letters), *_TEXT.split()]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    return BertTokenizer(vocab=vocabulary, model_max_length=POSITIONS)


def save_tiny_encoder(folder: Path, kind: str = "bert", **settings: Any) -> Path:
    """Write a random bare encoder: ``bert``, ``xlm-roberta``, ``mpnet`` or another kind that transformers knows."""
    from transformers import AutoConfig, AutoModel

    tokenizer = tiny_wordpiece()
    more = {"max_position_embeddings": POSITIONS, "pad_token_id": tokenizer.pad_token_id} | settings
    config = AutoConfig.for_model(kind, **tiny_sizes(len(tokenizer), **more))
    auto: Any = AutoModel
    return saved(folder, seeded(lambda: auto.from_config(config)), tokenizer)


def save_tiny_decoder(folder: Path) -> Path:
    """Write a random Qwen3 without its output layer, with a tokenizer that ends a text with a special token.

    Not with ``<|endoftext|>``: id 0 is the padding here, whose embedding is zero.
    """
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None  # sentence-transformers would write every text as a message
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", tokenizer.convert_tokens_to_ids("<|im_end|>"))]
    )
    return saved(folder, tiny_model("qwen3", max_position_embeddings=POSITIONS).model, tokenizer)


def save_sentence_transformer(bare: Path, folder: Path, *modules: Any, pooling: Any = "mean", **options: Any) -> Path:
    """Save a bare encoder as sentence-transformers does: pooling, then ``modules``; options go to its constructor."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(bare))
    pool = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    SentenceTransformer(modules=[transformer, pool, *modules], device="cpu", **options).save_pretrained(str(folder))
    return folder


def save_static_encoder(folder: Path) -> Path:
    """Write random static embeddings, as model2vec's: the mean of a text's token vectors, no transformer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = tiny_wordpiece()
    weights = torch.randn(len(tokenizer), 24, generator=torch.Generator().manual_seed(0))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu").save_pretrained(str(folder))
    return folder


def save_word_encoder(folder: Path) -> Path:
    """Write random embeddings of words, and the mean and the maximum of those of a text."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    words = ["PADDING_TOKEN", *dict.fromkeys(_TEXT.split())]
    weights = torch.randn(len(words), 12, generator=torch.Generator().manual_seed(0))
    modules = [WordEmbeddings(WhitespaceTokenizer(words, stop_words=[]), weights), Pooling(12, ("mean", "max"))]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def load(base: Path | str, **settings: Any) -> SentenceEncoder:
    """An encoder on the CPU in float32."""
    return load_encoder(EncoderConfig(base=str(base), **settings), torch.device("cpu"), torch.float32)
