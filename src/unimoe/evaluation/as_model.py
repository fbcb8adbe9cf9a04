"""What is given from Python, as the model that an evaluation needs."""

from __future__ import annotations

from typing import Any

from unimoe.config import Experiment
from unimoe.errors import UsageError
from unimoe.models.base import BaseModel
from unimoe.models.embedder import Embedder
from unimoe.models.unimodel import UnimodelForExp1


def as_unimodel(model: Any, tokenizer: Any, config: Experiment) -> UnimodelForExp1:
    """A causal language model as the reranker that a config describes; one that is a reranker already stays as it is.

    Raises:
        UsageError: the model's decoder is not where the scorer looks for it.
    """
    if isinstance(model, UnimodelForExp1):
        return model
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wrapper around it
    if not hasattr(getattr(inner, "model", None), "layers"):
        raise UsageError(
            f"a {type(model).__name__} has no decoder layers at model.layers; give a causal language model"
        )
    name = getattr(inner.config, "_name_or_path", "") or type(inner).__name__
    return UnimodelForExp1(BaseModel(inner, tokenizer, name), config.prompt, config.model.max_length)


def as_embedder(model: Any, tokenizer: Any, config: Experiment) -> Embedder:
    """A model that embeds as it is, or a causal language model as the encoder that a config describes.

    Raises:
        UsageError: it is neither.
    """
    if callable(getattr(model, "encode", None)) and hasattr(model, "base_identity"):
        embedder: Embedder = model
        return embedder
    return as_unimodel(model, tokenizer, config)
