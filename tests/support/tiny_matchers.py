"""Random sparse encoders and late interaction models, small enough for a unit test, as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.tiny_encoders import POSITIONS, save_tiny_encoder, tiny_wordpiece
from support.tiny_models import HIDDEN, saved, seeded, tiny_sizes


def save_tiny_mlm(folder: Path) -> Path:
    """Write a random masked language model, which the library reads as SPLADE."""
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = tiny_wordpiece()
    more = {"max_position_embeddings": POSITIONS, "pad_token_id": tokenizer.pad_token_id}
    config = BertConfig(**tiny_sizes(len(tokenizer), **more))
    return saved(folder, seeded(lambda: BertForMaskedLM(config)), tokenizer)


def save_tiny_splade(folder: Path, bare: Path, **settings: Any) -> Path:
    """Write SPLADE on a random masked language model."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(save_tiny_mlm(bare)), device="cpu", **settings)
    model.save_pretrained(str(folder))
    return folder


def save_tiny_inference_free(folder: Path, bare: Path) -> Path:
    """Write SPLADE whose queries are weights of words, without a model."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    documents: Any = SparseEncoder(str(save_tiny_mlm(bare)), device="cpu")
    tokenizer = tiny_wordpiece()
    queries = SparseStaticEmbedding(tokenizer, weight=torch.linspace(0.1, 2, len(tokenizer)))
    router = Router.for_query_document([queries], list(documents))
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(folder))
    return folder


def save_tiny_colbert(folder: Path, bare: Path, *, expand: int | None = None, **settings: Any) -> Path:
    """Write ColBERT on a random encoder: prefixes, a skip list, and queries expanded to a number of tokens."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion: Any = expand and {"strategy": "fixed", "attend": False, "length": expand}
    transformer = Transformer(str(save_tiny_encoder(bare)), query_expansion=expansion, document_length=40)
    place: dict[str, Any] = {"module_input_name": "token_embeddings"}
    dense = seeded(lambda: Dense(HIDDEN, 16, bias=False, activation_function=torch.nn.Identity(), **place))
    modules = [transformer, dense, MultiVectorMask(skiplist_words=[".", ","]), Normalize(**place)]
    prompts = {"query": "query ", "document": "passage "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts, **settings).save_pretrained(str(folder))
    return folder
