"""New cross-encoders: an encoder that reads query and document together, with one output.

sentence-transformers makes and trains them; this file finds the weights, seeds the head, and refuses bad bases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.model_files import (
    architecture,
    find_model,
    first_line,
    folder_named,
    label_count,
    silence_transformers,
    transformer_folder,
    weights_hash,
)
from unimoe.studies.common.trained_model import freeze_lower_layers
from unimoe.studies.cross_encoder.config import CrossEncoderModelConfig

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


def find_cross_encoder(config: CrossEncoderModelConfig) -> tuple[Path, str]:
    """Find a base by name: the folder of the model of transformers and its tokenizer, and ``id@hash`` of the weights.

    One with several labels is refused; the hash is the hub's commit where it comes from there.
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
    labels = label_count(folder) if architecture(folder).endswith("ForSequenceClassification") else None
    if labels not in (None, 1):
        raise DataError(
            f"model.base {config.base!r} has {labels} labels, a ranking loss needs one score per pair; "
            "take the encoder it was made from"
        )
    return folder, f"{name}@{commit or weights_hash(folder)}"


def new_cross_encoder(config: CrossEncoderModelConfig, folder: Path, seed: int, device: torch.device) -> CrossEncoder:
    """Make a cross-encoder of one label on the base in a folder; ``seed`` initialises its new head."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from transformers import set_seed

    set_seed(seed)  # the trainer sets it again, but only after the head is initialised
    trust = {"trust_remote_code": config.trust_remote_code}
    try:
        with silence_transformers():
            reader = Transformer(
                str(folder),
                transformer_task="sequence-classification",
                config_kwargs={"num_labels": 1, **trust},
                model_kwargs={"dtype": torch.float32, **trust},
                processor_kwargs={"model_max_length": config.max_length, **trust},
            )
            # Without local_files_only, the model card asks the hub whether parts of the path name a model there.
            model: CrossEncoder = CrossEncoder(modules=[reader], device=str(device), local_files_only=True)
    except Exception as error:  # loading ends in errors of many kinds: no such architecture, damaged or missing files
        raise DataError(
            f"model.base {config.base!r} cannot be loaded as a cross-encoder ({first_line(error)}); take an encoder "
            "that transformers knows for sequence classification"
        ) from None
    model.model_card_data.base_model = None if config.base.startswith("bundled:") else config.base
    if config.frozen_layers:
        transformer: Any = model[0]
        layers = freeze_lower_layers(transformer.model.base_model, config.frozen_layers)
        if config.frozen_layers > layers:
            raise DataError(f"model.frozen_layers {config.frozen_layers}: the base has {layers} layers")
    return model
