"""Writes and reads the checkpoint of a bi-encoder: a folder of sentence-transformers, a manifest and a model card.

``sentence_transformers.SentenceTransformer(FOLDER)`` and ``load_encoder(EncoderConfig(base=FOLDER))`` give the same
vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from huggingface_hub import ModelCardData

from unimoe.config.files import parse_config
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, write_text
from unimoe.models.quiet import silence_transformers
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.model import BiEncoder
from unimoe.studies.common.trained_model import TrainedModel, read_trained, write_trained
from unimoe.training.losses.named import bibtex
from unimoe.training.model_card import rendered

DENSE = "2_Dense"
"""Folder of the linear layer in a checkpoint."""


class BiEncoderManifest(TrainedModel):
    """The origin of a checkpoint.

    Attributes:
        kind: distinguishes it from an adapter's manifest.
        dtype: of the forward passes in training.
        facts: epoch, dev scores and seconds.
    """

    checkpoint_version: Literal[1] = 1
    kind: Literal["biencoder"] = "biencoder"
    dtype: str
    facts: dict[str, float]

    @property
    def settings(self) -> BiEncoderConfig:
        """The configuration of the training."""
        return parse_config(BiEncoderConfig, self.config, source=f"checkpoint of {self.arm}, seed {self.seed}")


def save_checkpoint(folder: Path, model: BiEncoder, **fields: Any) -> None:
    """Write a checkpoint folder atomically, in place of an earlier one; ``fields`` are those of its manifest."""
    with atomic_dir(folder) as temporary, silence_transformers():
        model.save(temporary)
        manifest = write_trained(temporary, BiEncoderManifest, **fields)
        write_text(temporary / "README.md", _model_card(manifest, model.width))


def read_biencoder(folder: Path) -> BiEncoderManifest:
    """Read and verify the manifest of a checkpoint folder.

    Raises:
        DataError: the folder is missing, incomplete, damaged, or not a bi-encoder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such checkpoint folder; train the bi-encoder first (unimoe train-biencoder)")
    return read_trained(folder, BiEncoderManifest, "bi-encoder")


def _model_card(manifest: BiEncoderManifest, width: int) -> str:
    base = manifest.base_model.rpartition("@")[0]
    named = {"base_model": base} if "/" in base and not base.startswith("bundled:") else {}
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "unimoe"],
        **named,
    )
    template, citation = Path(__file__).with_name("model_card.md.j2"), bibtex("oord2018representation")
    return rendered(template, data, made=manifest, base=base, width=width, citation=citation) + "\n"
