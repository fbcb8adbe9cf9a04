"""What the training of a bi-encoder leaves behind: a folder of sentence-transformers with a manifest and a model card.

``sentence_transformers.SentenceTransformer(FOLDER)`` and ``load_encoder(EncoderConfig(base=FOLDER))`` give the same
vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from pydantic import BaseModel, ConfigDict

from unimoe.config.files import parse_config
from unimoe.errors import DataError
from unimoe.io import atomic_dir, ensure_dir, hash_file, hash_parts, read_model, write_json, write_text
from unimoe.models.quiet import quiet_loading
from unimoe.results import TrainingBudget
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.card import model_card
from unimoe.studies.biencoder.training.model import BiEncoder

_MANIFEST = "unimoe.json"
_MODULES = "sentence_transformers.models."
_DENSE = "2_Dense"
_POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}


class BiEncoderManifest(BaseModel):
    """Where a checkpoint came from.

    Attributes:
        kind: tells it from an adapter's manifest.
        which: the best epoch on dev, or the last.
        base_model: identity of the base, ``id@hash``.
        fingerprint: content hash of all that determines the training.
        weights_hash: content hash of the weights in the folder.
        facts: epoch and dev scores.
        training: what was seen.
        config: of the training.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    checkpoint_version: Literal[1] = 1
    kind: Literal["biencoder"] = "biencoder"
    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str
    dtype: str
    fingerprint: str
    weights_hash: str
    facts: dict[str, float]
    training: TrainingBudget
    config: dict[str, Any]

    @property
    def settings(self) -> BiEncoderConfig:
        """The configuration of the training."""
        return parse_config(BiEncoderConfig, self.config, source=f"checkpoint of {self.arm}, seed {self.seed}")


def save_checkpoint(folder: Path, model: BiEncoder, manifest: Mapping[str, Any]) -> None:
    """Write a checkpoint folder, whole or not at all; one that is there is replaced.

    Args:
        folder: where to.
        model: its weights as they are now.
        manifest: the manifest's fields, without ``weights_hash``.
    """
    with atomic_dir(folder) as temporary, quiet_loading():
        model.transformer.save_pretrained(temporary)
        model.tokenizer.save_pretrained(temporary)
        width = _write_modules(temporary, model)
        whole = BiEncoderManifest(**manifest, weights_hash=_weights_hash(temporary))
        write_text(temporary / "README.md", model_card(whole.model_dump(), width))
        write_json(temporary / _MANIFEST, whole.model_dump())


def read_biencoder(folder: Path) -> BiEncoderManifest:
    """Read and verify the manifest of a checkpoint folder.

    Raises:
        DataError: the folder is missing, half-written, damaged, or no bi-encoder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such checkpoint folder; train the bi-encoder first (unimoe train-biencoder)")
    path = folder / _MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no bi-encoder of a training here, {_MANIFEST} is missing; train it again")
    manifest = read_model(path, BiEncoderManifest, "give the checkpoint of a bi-encoder")
    if _weights_hash(folder) != manifest.weights_hash:
        raise DataError(f"{folder}: weights differ from the manifest (damaged or replaced); train it again")
    return manifest


def dense_folder(folder: Path) -> Path:
    """Where a checkpoint keeps its linear layer."""
    return folder / _DENSE


def _write_modules(folder: Path, model: BiEncoder) -> int:
    """The files of sentence-transformers; returns the dimensions of a vector."""
    hidden = width = int(model.transformer.config.hidden_size)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    pooling = {"word_embedding_dimension": hidden, "pooling_mode": _POOLING[model.files.pooling]}
    write_json(folder / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    if model.head is not None:
        width = model.head.out_features
        kinds.append(("Dense", _DENSE))
        dense: dict[str, Any] = {"in_features": hidden, "out_features": width, "bias": False}
        dense["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / _DENSE / "config.json", dense)
        weight = model.head.weight.detach().cpu().contiguous()
        safetensors.torch.save_file({"linear.weight": weight}, folder / _DENSE / "model.safetensors")
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    ensure_dir(folder / kinds[-1][1])
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _MODULES + kind}
        for number, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    length = {"max_seq_length": model.base.max_length, "do_lower_case": model.files.lower_case}
    write_json(folder / "sentence_bert_config.json", length)
    prefixes = {kind: model.files.prefixes[kind] for kind in ("query", "document")}
    prompts = {"prompts": prefixes, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    return width


def _weights_hash(folder: Path) -> str:
    return hash_parts(hash_file(file) for file in sorted(folder.rglob("*.safetensors")))
