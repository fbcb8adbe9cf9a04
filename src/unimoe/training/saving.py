"""Writes a checkpoint: a PEFT adapter, its manifest, and its model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from unimoe.checkpoint import ADAPTER_FILE, Checkpoint, write_manifest
from unimoe.io import atomic_dir, hash_file, write_text
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.model_card import base_on_hub, model_card


def save_checkpoint(
    folder: Path, manifest: Mapping[str, Any], peft: Any, model: UnimodelForExp1, masters: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint folder in one go.

    Args:
        folder: its place; what is there is replaced.
        manifest: of the checkpoint, but for the adapter's hash.
        peft: the PEFT model in training.
        model: the model around it.
        masters: the float32 weights by name that the adapters are rounded copies of.
    """
    with atomic_dir(folder) as temporary:
        peft.save_pretrained(temporary, save_embedding_layers=False)  # adapters alone; "auto" would ask the hub
        _write_masters(temporary / ADAPTER_FILE, masters)
        checkpoint = Checkpoint(**manifest, adapter_hash=hash_file(temporary / ADAPTER_FILE))
        _name_base(temporary / "adapter_config.json", base_on_hub(checkpoint.experiment))
        write_text(temporary / "README.md", model_card(checkpoint, model))
        write_manifest(temporary, checkpoint)


def _write_masters(path: Path, masters: Mapping[str, Tensor]) -> None:
    """What was trained are the masters; PEFT has just written their rounded copies."""
    rounded = safetensors.torch.load_file(path)
    weights = {name.replace(".default.", "."): value.contiguous() for name, value in masters.items()}
    if weights.keys() != rounded.keys():
        raise AssertionError(f"adapter names differ: {sorted(weights.keys() ^ rounded.keys())[:3]}")
    safetensors.torch.save_file(weights, path, {"format": "pt"})


def _name_base(path: Path, base: str) -> None:
    """The base model by the name that others know it by, not by its place on this machine."""
    config = json.loads(path.read_text(encoding="utf-8"))
    write_text(path, json.dumps(config | {"base_model_name_or_path": base}, indent=2) + "\n")
