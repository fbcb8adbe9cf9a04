"""What trained models of sentence-transformers share: the manifest in their folder, and which layers are frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from unimoe.config.base import Section
from unimoe.core.errors import DataError
from unimoe.core.io import changed_file, hash_files, hash_parts, read_json, write_json
from unimoe.models.identity import ADAPTER_SETTINGS
from unimoe.results import TrainingBudget

MANIFEST = "unimoe.json"


class TrainedModel(Section):
    """What the manifests of all trained models say."""

    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str  # identity of the base, ``id@hash``
    fingerprint: str  # content hash of everything that determined the training
    weights_hash: str  # content hash of the weights in the folder, and of what scales adapters among them
    files: dict[str, str]  # content hash of each file of the model
    training: TrainingBudget
    config: dict[str, Any]


T = TypeVar("T", bound=TrainedModel)


def write_trained(folder: Path, kind: type[T], **fields: Any) -> T:
    """Write the manifest of the model in a folder, which completes it; ``fields`` lack the hashes of its files."""
    files = hash_files(folder, but=["README.md"])
    weighing = (".safetensors", ADAPTER_SETTINGS)
    weights = hash_parts(content for name, content in files.items() if name.endswith(weighing))
    manifest = kind(**fields, weights_hash=weights, files=files)
    write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


def read_trained(folder: Path, kind: type[T], name: str) -> T:
    """Read and verify the manifest of a kind of model, which messages name."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no whole {name}, {MANIFEST} is missing; delete it and train again")
    manifest = read_json(path, kind, "train again with this unimoe")
    if file := changed_file(folder, manifest.files):
        raise DataError(f"{file}: differs from the manifest (damaged or replaced); train again")
    return manifest


def freeze_lower_layers(transformer: Any, number: int) -> int:
    """Freeze the embeddings and so many of the lowest layers of a transformer; return how many layers it has.

    What computes after the last layer alone, such as a final norm, trains: a pass of two tokens finds it.
    """
    stacks: list[Any] = [module for module in transformer.modules() if isinstance(module, nn.ModuleList)]
    layers: Any = max(stacks, key=len, default=[])
    if number > len(layers):
        return len(layers)
    inside = {module for layer in layers for module in layer.modules()}
    called: list[nn.Module] = []
    watched = [module for module in transformer.modules() if module not in inside and not list(module.children())]
    hooks = [module.register_forward_hook(lambda part, *_: called.append(part)) for module in [*watched, layers[-1]]]
    try:
        with torch.no_grad():
            transformer(input_ids=torch.zeros(1, 2, dtype=torch.long, device=transformer.device))
    finally:
        for hook in hooks:
            hook.remove()
    last = len(called) - called[::-1].index(layers[-1])
    transformer.requires_grad_(False)
    for part in (*layers[number:], *(part for part in called[last:] if part not in called[:last])):
        part.requires_grad_(True)
    return len(layers)
