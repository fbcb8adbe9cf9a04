"""Random sparse encoders and late interaction models, small enough for a unit test, as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from support.tiny_encoders import save_tiny_encoder, tiny_wordpiece
from support.tiny_models import HIDDEN, seeded


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
