"""New cross-encoders: an encoder that reads query and document together, with one output.

sentence-transformers makes and trains them; this file finds the weights, seeds the head, and refuses bad bases.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.models.bundled import bundled_encoder_folder, folder_named
from unimoe.models.model_files import architecture, find_model, label_count, transformer_folder, weights_hash
from unimoe.models.quiet import first_line, silence_transformers
from unimoe.studies.cross_encoder.config import CrossEncoderModelConfig

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


@dataclass(frozen=True)
class CrossEncoderFiles:
    """The base of a cross-encoder.

    Attributes:
        folder: of the transformers model and its tokenizer.
        identity: logical id and content hash of the weights, or the hub's commit: ``id@hash``.
    """

    folder: Path
    identity: str


def find_cross_encoder(config: CrossEncoderModelConfig) -> CrossEncoderFiles:
    """Find a base by name.

    Raises:
        DataError: it cannot be loaded, or has more than one label.
    """
    if config.base.startswith("bundled:"):
        root, name, commit = bundled_encoder_folder(config.base), BUNDLED_ENCODER, None
    elif (named := folder_named("model.base", config.base)) is not None:
        root, name, commit = named, named.resolve().name, None
    else:
        remedy = f", or set model.base to {BUNDLED_ENCODER}"
        trust = config.trust_remote_code
        root, commit = find_model("model.base", config.base, config.revision, trust_remote_code=trust, remedy=remedy)
        name = config.base
    folder = transformer_folder(root)
    _refuse_several_labels(config.base, folder)
    return CrossEncoderFiles(folder, f"{name}@{commit or weights_hash(folder)}")


def new_cross_encoder(
    config: CrossEncoderModelConfig, files: CrossEncoderFiles, seed: int, device: torch.device
) -> CrossEncoder:
    """Make a cross-encoder of one label on a base; ``seed`` initialises its new head.

    Raises:
        DataError: the base cannot have a head, or has fewer layers than ``frozen_layers``.
    """
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from transformers import set_seed

    set_seed(seed)  # the trainer sets it again, but only after the head is initialised
    trust = {"trust_remote_code": config.trust_remote_code}
    try:
        with silence_transformers():
            transformer = Transformer(
                str(files.folder),
                transformer_task="sequence-classification",
                config_kwargs={"num_labels": 1, **trust},
                model_kwargs={"dtype": torch.float32, **trust},
                processor_kwargs={"model_max_length": config.max_length, **trust},
            )
            # Without local_files_only, the model card asks the hub whether parts of the path name a model there.
            model: CrossEncoder = CrossEncoder(modules=[transformer], device=str(device), local_files_only=True)
    except Exception as error:  # loading ends in errors of many kinds: no such architecture, damaged or missing files
        raise DataError(
            f"model.base {config.base!r} cannot be loaded as a cross-encoder ({first_line(error)}); take an encoder "
            "that transformers knows for sequence classification"
        ) from None
    model.model_card_data.base_model = None if config.base.startswith("bundled:") else config.base
    _freeze(model, config.frozen_layers)
    return model


def _refuse_several_labels(base: str, folder: Path) -> None:
    labels = label_count(folder) if architecture(folder).endswith("ForSequenceClassification") else None
    if labels not in (None, 1):
        raise DataError(
            f"model.base {base!r} has {labels} labels, a ranking loss needs one score per pair; "
            "take the encoder it was made from"
        )


def _freeze(model: CrossEncoder, layers: int) -> None:
    if not layers:
        return
    transformer: Any = model[0]
    encoder = transformer.model.base_model
    stack = getattr(getattr(encoder, "encoder", encoder), "layer", None)
    if stack is None or not hasattr(encoder, "embeddings"):
        raise DataError("model.frozen_layers: the layers of this base are not known; set it to 0")
    if layers > len(stack):
        raise DataError(f"model.frozen_layers {layers}: the base has {len(stack)} layers")
    for part in (encoder.embeddings, *stack[:layers]):
        part.requires_grad_(False)
