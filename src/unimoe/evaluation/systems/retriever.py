"""What embeds for dense retrieval: an encoder by name, one behind a server, or an arm's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.config import DenseConfig, DenseExperiment
from unimoe.config.served import ServedConfig
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.evaluation.systems.system import BM25, RecipeMaker, arm_name, checkpoint_loader, trained_system
from unimoe.models.checkpoint import Checkpoint, read_checkpoint
from unimoe.models.device import choose_dtype, describe_device
from unimoe.models.embedder import Embedder, TextKind
from unimoe.models.loader import weights_hash
from unimoe.models.served.client import refuse_secrets
from unimoe.models.served.probe import served_name
from unimoe.results import safe_name

if TYPE_CHECKING:
    from unimoe.evaluation.systems.named.python_function import FunctionEmbedder
    from unimoe.models.served.embedder import ServedEmbedder


@dataclass(frozen=True)
class Retriever:
    """A system that embeds for dense retrieval, an encoder by name or an arm's checkpoint; see also ``System``.

    Attributes:
        prompt: name and hash of the prompt, lengths included.
        device: its description.
    """

    name: str
    load: Callable[[], Embedder]
    base_identity: str
    prompt: str
    device: str
    dtype: str
    checkpoint: Checkpoint | None = None
    recipe: RecipeMaker | None = None

    def model(self) -> Embedder:
        """Return the model, loaded."""
        return self.load()


def fused_name(name: str) -> str:
    """Return the name of the arm that fuses a retriever with BM25."""
    return f"{name}+{BM25}"


def retriever_name(experiment: DenseExperiment, checkpoint: Path | None, name: str | None) -> str:
    """Return the name of a retriever's arm: the one given, else that of the checkpoint's arm, else the encoder's base.

    Raises:
        UsageError: the name cannot be an arm's.
        DataError: the checkpoint is missing or damaged.
    """
    if name is None and checkpoint is None and (settings := served_settings(experiment)):
        name = served_name(settings)
    elif name is None:
        last = re.split(r"[:/\\]", experiment.encoder.base.rstrip("/\\"))[-1]
        name = read_checkpoint(checkpoint).arm if checkpoint else safe_name(last)
    return arm_name(name)


def encoder_retriever(
    experiment: DenseExperiment, name: str, device: torch.device, dtype: torch.dtype | None = None
) -> Retriever:
    """Load the encoder of an experiment, by default in the dtype of its settings.

    Raises:
        UnimoeError: the encoder cannot be loaded.
    """
    from unimoe.models.encoder import load_encoder

    if settings := served_settings(experiment):
        return _served_retriever(experiment, settings, name)
    base = experiment.encoder.base
    if base.startswith("python:"):
        from unimoe.evaluation.systems.named.python_function import named_embedder

        return _elsewhere(experiment, named_embedder("encoder.base", base.removeprefix("python:")), name)
    dtype = dtype or choose_dtype(device, experiment.encoder.dtype)
    model = load_encoder(experiment.encoder, device, dtype)
    return Retriever(
        name=name,
        load=lambda: model,
        base_identity=model.base_identity,
        prompt=_prompt_with_lengths(model.prompt_name, experiment.retrieval),
        device=describe_device(device),
        dtype=str(dtype).removeprefix("torch."),
    )


def _served_retriever(experiment: DenseExperiment, settings: ServedConfig, name: str) -> Retriever:
    from unimoe.models.served.embedder import ServedEmbedder

    encoder = experiment.encoder
    prefixes: dict[TextKind, str] = {"query": encoder.query_prefix or "", "document": encoder.document_prefix or ""}
    model = ServedEmbedder(encoder.base, settings, prefixes)
    return _elsewhere(experiment, model, name)


def _elsewhere(experiment: DenseExperiment, model: ServedEmbedder | FunctionEmbedder, name: str) -> Retriever:
    """Return the retriever of a model whose device and dtype are not ours to choose."""
    prompt = _prompt_with_lengths(model.prompt_name, experiment.retrieval)
    return Retriever(name, lambda: model, model.base_identity, prompt, model.place, "unknown")


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


def checkpoint_retriever(experiment: DenseExperiment, folder: Path, name: str, device: torch.device) -> Retriever:
    """Return the arm of a checkpoint folder, in the dtype it was trained in; it is loaded when it is needed.

    Raises:
        UsageError: the arm was trained to rank only.
        DataError: the checkpoint is missing, damaged, or of another base model.
    """
    checkpoint = read_checkpoint(folder)
    trained = checkpoint.experiment.model_copy(update={"evaluation": experiment.evaluation})
    if trained.arm(checkpoint.arm).task == "rank_only":
        raise UsageError(f"--checkpoint {folder}: {checkpoint.arm} was trained to rank only; give an arm that embeds")
    loader = checkpoint_loader(trained, checkpoint, device)
    trained_system(trained, loader, folder)  # refuses an adapter of another base model
    return Retriever(
        name=name,
        load=cache(lambda: loader.trained(folder)),
        base_identity=loader.identity,
        prompt=_prompt_with_lengths(loader.prompt, experiment.retrieval),
        device=describe_device(device),
        dtype=loader.dtype_name,
        checkpoint=checkpoint.model_copy(update={"adapter_hash": weights_hash(checkpoint, trained.evaluation)}),
    )


def _prompt_with_lengths(prompt: str, config: DenseConfig) -> str:
    if config.query_length is None and config.document_length is None:
        return prompt
    return f"{prompt.rpartition('@')[0]}@{hash_json([prompt, config.query_length, config.document_length])}"
