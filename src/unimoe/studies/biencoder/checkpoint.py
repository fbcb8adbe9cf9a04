"""Writes and reads the checkpoint of a bi-encoder: a folder of sentence-transformers, a manifest and a model card.

``sentence_transformers.SentenceTransformer(FOLDER)`` and ``load_encoder(EncoderConfig(base=FOLDER))`` give the same
vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from huggingface_hub import ModelCardData

from unimoe.config.files import parse_config
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, ensure_dir, write_json, write_text
from unimoe.models.model_files import silence_transformers
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.model import DENSE, BiEncoder
from unimoe.studies.common.trained_model import TrainedModel, read_trained, write_trained
from unimoe.training.losses.named import bibtex
from unimoe.training.model_card import rendered

_MODULES = "sentence_transformers.models."


class BiEncoderManifest(TrainedModel):
    """The origin of a checkpoint."""

    checkpoint_version: Literal[1] = 1
    kind: Literal["biencoder"] = "biencoder"  # an adapter's manifest has none
    dtype: str  # of the forward passes in training
    facts: dict[str, float]  # epoch, dev scores and seconds

    @property
    def settings(self) -> BiEncoderConfig:
        """The configuration of the training."""
        return parse_config(BiEncoderConfig, self.config, source=f"checkpoint of {self.arm}, seed {self.seed}")


def save_checkpoint(folder: Path, model: BiEncoder, **fields: Any) -> None:
    """Write a checkpoint folder atomically, in place of an earlier one; ``fields`` are those of its manifest."""
    with atomic_dir(folder) as temporary, silence_transformers():
        model.transformer.save_pretrained(temporary)
        encoder = model.base.model
        encoder.max_seq_length = model.base.max_length  # training has cut texts to other lengths
        encoder.tokenizer.save_pretrained(temporary)
        width = _write_modules(temporary, model)
        manifest = write_trained(temporary, BiEncoderManifest, **fields)
        write_text(temporary / "README.md", _model_card(manifest, width))


def read_biencoder(folder: Path) -> BiEncoderManifest:
    """Read and verify the manifest of a checkpoint folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such checkpoint folder; train the bi-encoder first (unimoe train-biencoder)")
    return read_trained(folder, BiEncoderManifest, "bi-encoder")


def _write_modules(folder: Path, model: BiEncoder) -> int:
    """Write the files of sentence-transformers as servers and its versions before 6 read them; return the width."""
    width = int(model.pooling.pooling_output_dimension)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    pooling = {
        "word_embedding_dimension": model.pooling.embedding_dimension,
        "pooling_mode": model.pooling.pooling_mode,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    if model.head is not None:
        hidden, width = width, model.head.out_features
        kinds.append(("Dense", DENSE))
        dense: dict[str, Any] = {"in_features": hidden, "out_features": width, "bias": False}
        dense["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / DENSE / "config.json", dense)
        weight = model.head.weight.detach().cpu().contiguous()
        safetensors.torch.save_file({"linear.weight": weight}, folder / DENSE / "model.safetensors")
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    ensure_dir(folder / kinds[-1][1])
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _MODULES + kind}
        for number, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    length = {"max_seq_length": model.base.max_length, "do_lower_case": model.base.model[0].do_lower_case}
    write_json(folder / "sentence_bert_config.json", length)
    prefixes = {kind: model.base.prefixes[kind] for kind in ("query", "document")}
    prompts = {"prompts": prefixes, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    return width


def _model_card(manifest: BiEncoderManifest, width: int) -> str:
    base = manifest.base_model.rpartition("@")[0]
    known = {"base_model": base} if "/" in base and not base.startswith("bundled:") else {}
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "unimoe"],
        **dict[str, Any](known),
    )
    template, citation = Path(__file__).with_name("model_card.md.j2"), bibtex("oord2018representation")
    return rendered(template, data, made=manifest, base=base, width=width, citation=citation) + "\n"
