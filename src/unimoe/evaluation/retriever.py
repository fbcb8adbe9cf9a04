"""Systems that search: a model by name, one behind a server, or an arm's checkpoint; and their fusion with BM25."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unimoe.config import DenseConfig, DenseExperiment
from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.evaluation.system import BM25, System, arm_name, checkpoint_loader, model_recipe, trained_system
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.device import choose_dtype
from unimoe.models.embedder import Embedder, TextKind
from unimoe.models.encoder import load_encoder
from unimoe.models.matcher import MATCHERS
from unimoe.models.model import Model
from unimoe.models.rerankers.python_function import named_embedder
from unimoe.models.served.client import refuse_secrets
from unimoe.models.served.embedder import ServedEmbedder
from unimoe.models.served.probe import served_name
from unimoe.results import safe_name
from unimoe.retrieval.model_search import ModelSearch
from unimoe.retrieval.passages import Passages
from unimoe.retrieval.sizes import sizes_of


def fused_name(name: str) -> str:
    """Return the name of the arm that fuses a retriever with BM25."""
    return f"{name}+{BM25}"


def fused_system(retriever: System) -> System:
    """Return the fusion of a retriever with BM25."""
    return replace(retriever, name=fused_name(retriever.name), fused=True)


def retriever_name(experiment: DenseExperiment, checkpoint: Path | None, name: str | None) -> str:
    """Return the name of a retriever's arm: the one given, else the checkpoint's arm's, else the encoder's base."""
    if name is None and checkpoint is None and (settings := served_settings(experiment)):
        name = served_name(settings)
    elif name is None:
        last = re.split(r"[:/\\]", experiment.encoder.base.rstrip("/\\"))[-1]
        name = read_checkpoint(checkpoint).arm if checkpoint else safe_name(last)
    return arm_name(name)


def encoder_retriever(
    experiment: DenseExperiment, name: str, device: torch.device, dtype: torch.dtype | None = None
) -> System:
    """Return the encoder of an experiment as a system that searches, by default in the dtype of its settings.

    A sparse encoder or a late interaction model is loaded when it has to search.
    """
    encoder, base, dtype_name = experiment.encoder, experiment.encoder.base, "unknown"
    embedder: Embedder
    caveats = tuple[str, ...]()
    if settings := served_settings(experiment):
        prefixes: dict[TextKind, str | None] = {"query": encoder.query_prefix, "document": encoder.document_prefix}
        served = ServedEmbedder(base, settings, prefixes)
        model = embedders_model(served, experiment.retrieval, dtype_name, usage=served.usage)
        return System(name, experiment, model, ("retrieval",))
    if base.startswith(tuple(f"{kind}:" for kind in MATCHERS)):
        return _matching_system(experiment, name, device, dtype or choose_dtype(device, encoder.dtype))
    if base.startswith("python:"):
        embedder = named_embedder("encoder.base", base.removeprefix("python:"))
    else:
        dtype = dtype or choose_dtype(device, encoder.dtype)
        embedder = loaded = load_encoder(encoder, device, dtype)
        caveats, dtype_name = loaded.caveats, str(dtype).removeprefix("torch.")
        encoder = encoder.model_copy(update={"dtype": dtype_name})
    recipe = model_recipe("encoder", experiment.model_copy(update={"encoder": encoder}))
    model = embedders_model(embedder, experiment.retrieval, dtype_name, caveats=caveats)
    return System(name, experiment, model, ("retrieval",), recipe=recipe)


def embedders_model(embedder: Embedder, config: DenseConfig, dtype: str, **facts: Any) -> Model:
    """Return the model of what embeds the texts of a search."""
    prompt = _prompt_with_lengths(embedder.prompt_name, config)
    known = {"said": embedder.said, "seen": embedder.seen, **facts}
    return Model(embedder.base_identity, prompt, dtype, embed=lambda: embedder, **known)


def _matching_system(experiment: DenseExperiment, name: str, device: torch.device, dtype: torch.dtype) -> System:
    """Return a sparse encoder or a late interaction model, which searches without vectors of documents."""
    config, encoder = experiment.retrieval, experiment.encoder
    if sizes_of(config, None) or config.query_length or config.document_length:
        raise UsageError(
            f"encoder.base {encoder.base}: retrieval.dims, precisions, query_length and document_length are for one "
            "vector for each text; leave them out, and set encoder.max_length for another length"
        )
    dtype_name = str(dtype).removeprefix("torch.")
    settings = encoder.model_copy(update={"dtype": dtype_name})
    search = ModelSearch(settings, "encoder", device, Passages.of(experiment.evaluation))
    model = Model(*search.identity, dtype_name, said=search.said, seen=search.seen)
    return System(name, experiment, model, ("retrieval",), search=search)


def served_settings(experiment: DenseExperiment) -> ServedConfig | None:
    """Return how the encoder is asked where its base is a server's address, else None."""
    base = experiment.encoder.base
    if not base.startswith(("http://", "https://")):
        return None
    refuse_secrets(base)
    if experiment.served is None:
        raise UsageError(
            f"encoder.base {base}: say what it speaks and what it serves with --set served.api=openai "
            "--set served.model=NAME"
        )
    return experiment.served


def checkpoint_retriever(experiment: DenseExperiment, folder: Path, name: str, device: torch.device) -> System:
    """Return the arm of a checkpoint folder, in the dtype it was trained in; it is loaded when it is needed."""
    checkpoint = read_checkpoint(folder)
    trained = checkpoint.experiment
    trusting = trained.model.model_copy(update={"trust_remote_code": experiment.encoder.trust_remote_code})
    trained = trained.model_copy(update={"evaluation": experiment.evaluation, "model": trusting})
    if trained.arm_named(checkpoint.arm).task == "rank_only":
        raise UsageError(f"--checkpoint {folder}: {checkpoint.arm} was trained to rank only; give an arm that embeds")
    loader = checkpoint_loader(trained, checkpoint, device)
    try:
        system = trained_system(trained, loader, folder)
    except DataError as error:  # its remedy is a key of the other kind of config
        raise DataError(str(error).replace("model.trust_remote_code", "encoder.trust_remote_code")) from None
    prompt = _prompt_with_lengths(loader.prompt, experiment.retrieval)
    model = system.model and replace(system.model, prompt=prompt)
    return replace(system, name=name, experiment=experiment, model=model, tasks=("retrieval",))


def _prompt_with_lengths(prompt: str, config: DenseConfig) -> str:
    if config.query_length is None and config.document_length is None:
        return prompt
    return f"{prompt.rpartition('@')[0]}@{hash_json([prompt, config.query_length, config.document_length])}"
