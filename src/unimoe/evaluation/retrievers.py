"""What embeds in dense retrieval: an encoder by name, or the checkpoint of an arm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from unimoe.checkpoint import Checkpoint, read_checkpoint
from unimoe.config.dense import DenseConfig, DenseExperiment
from unimoe.errors import UsageError
from unimoe.evaluation.subjects import trained_subject
from unimoe.io import hash_json
from unimoe.models.device import choose_dtype, describe_device
from unimoe.models.embedder import Embedder
from unimoe.models.loader import ModelLoader
from unimoe.results import safe_name

BM25 = "bm25"


@dataclass(frozen=True)
class Retriever:
    """What embeds: an encoder by name, or the checkpoint of an arm.

    Attributes:
        name: the arm.
        fused_name: the arm that joins it with BM25.
        load: gives the model, when it is needed.
        base_identity: of the base weights.
        prompt: name and hash of the prompt, lengths included.
        device: in words.
        dtype: what the model computes in.
        checkpoint: of a trained arm.
    """

    name: str
    fused_name: str
    load: Callable[[], Embedder]
    base_identity: str
    prompt: str
    device: str
    dtype: str
    checkpoint: Checkpoint | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """Content hashes of weights and prompt, by name."""
        hashes = {"base_model": self.base_identity.rpartition("@")[2], "prompt": self.prompt.rpartition("@")[2]}
        return hashes | ({"checkpoint": self.checkpoint.adapter_hash} if self.checkpoint else {})


def arm_names(experiment: DenseExperiment, checkpoint: Path | None, name: str | None) -> tuple[str, str]:
    """What the arm and its fusion with BM25 are called.

    Args:
        experiment: whose encoder gives its base's last part for a name.
        checkpoint: a checkpoint folder, whose arm's name goes first.
        name: given by hand; goes before both.

    Raises:
        UsageError: the name cannot be an arm's.
        DataError: the checkpoint is missing or damaged.
    """
    if name is None:
        last = re.split(r"[:/\\]", experiment.encoder.base.rstrip("/\\"))[-1]
        name = read_checkpoint(checkpoint).arm if checkpoint else safe_name(last)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", name) or name == BM25:
        raise UsageError(
            f"--name {name}: no name for this arm; use letters, digits, '_', '.' and '-', and not {BM25}, which has "
            "results of its own"
        )
    return name, f"{name}+{BM25}"


def encoder_retriever(experiment: DenseExperiment, names: tuple[str, str], device: torch.device) -> Retriever:
    """The encoder of an experiment, loaded.

    Args:
        experiment: its ``encoder`` and ``retrieval`` sections are used.
        names: as ``arm_names`` gives them.
        device: where to compute.

    Raises:
        UnimoeError: the encoder cannot be loaded.
    """
    from unimoe.models.encoder import load_encoder

    encoder = experiment.encoder
    dtype = choose_dtype(device, encoder.dtype)
    model = load_encoder(encoder, device, dtype)
    return Retriever(
        name=names[0],
        fused_name=names[1],
        load=lambda: model,
        base_identity=model.base_identity,
        prompt=_prompt(model.prompt_name, experiment.retrieval),
        device=describe_device(device),
        dtype=str(dtype).removeprefix("torch."),
    )


def checkpoint_retriever(
    experiment: DenseExperiment, folder: Path, names: tuple[str, str], device: torch.device
) -> Retriever:
    """The arm of a checkpoint folder, in the dtype it was trained in; loaded when it is needed.

    Args:
        experiment: its ``retrieval`` section is used.
        folder: the checkpoint's.
        names: as ``arm_names`` gives them.
        device: where to compute.

    Raises:
        UsageError: the arm was trained to rank only.
        DataError: the checkpoint is missing, damaged, or of another base model.
    """
    checkpoint = read_checkpoint(folder)
    trained = checkpoint.experiment
    if trained.arm(checkpoint.arm).task == "rank_only":
        raise UsageError(f"--checkpoint {folder}: {checkpoint.arm} was trained to rank only; give an arm that embeds")
    dtype = trained.model.dtype if trained.model.dtype != "auto" else checkpoint.dtype
    loader = ModelLoader(trained, device, getattr(torch, dtype))
    subject = trained_subject(trained, loader, folder)
    return Retriever(
        name=names[0],
        fused_name=names[1],
        load=cache(lambda: loader.trained(folder)),
        base_identity=loader.identity,
        prompt=_prompt(loader.prompt, experiment.retrieval),
        device=describe_device(device),
        dtype=loader.dtype_name,
        checkpoint=subject.checkpoint,
    )


def _prompt(own: str, config: DenseConfig) -> str:
    """Name and hash of a model's prompt, and of the lengths that queries and documents are cut to."""
    if config.query_length is None and config.document_length is None:
        return own
    return f"{own.rpartition('@')[0]}@{hash_json([own, config.query_length, config.document_length])}"
