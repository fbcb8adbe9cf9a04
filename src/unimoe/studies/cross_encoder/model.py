"""Classic cross-encoders: an encoder that reads query and document together, with one output.

sentence-transformers makes, loads and runs them; this file finds the weights, seeds the head, and refuses bad bases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unimoe.config.dense import BUNDLED_ENCODER
from unimoe.errors import DataError, InputError
from unimoe.io import hash_file, hash_parts, read_json
from unimoe.models.bundled import bundled_encoder_folder, folder_named
from unimoe.models.encoder_files import NOT_FROM_HUB
from unimoe.models.matmul import quicken
from unimoe.models.quiet import first_line, quiet_loading
from unimoe.studies.cross_encoder.config import CrossEncoderModelConfig

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

Pair = tuple[str, str]

_FROM_HUB = ["*.json", "*.txt", "*.model", "*.safetensors"]
_CHUNK = 16
"""Batches between two reports of progress."""


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
        root = _download(config)
        name, commit = config.base, root.name[:16]
    folder = _transformer_folder(root)
    _refuse_several_labels(config.base, read_json(folder / "config.json"))
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
        with quiet_loading():
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
    quicken(model)
    return model


def load_cross_encoder(folder: Path, device: torch.device) -> CrossEncoder:
    """Load a trained cross-encoder.

    Raises:
        DataError: it cannot be loaded, or has more than one label.
    """
    from sentence_transformers import CrossEncoder

    try:
        with quiet_loading():
            model: CrossEncoder = CrossEncoder(str(folder), device=str(device), local_files_only=True)
    except Exception as error:
        raise DataError(f"{folder}: cannot be loaded as a cross-encoder ({first_line(error)})") from None
    if model.num_labels != 1:
        raise DataError(f"{folder}: a model of {model.num_labels} labels; ranking needs one score per pair")
    quicken(model)
    return model


def score_pairs(
    model: CrossEncoder, pairs: Sequence[Pair], batch_size: int, advance: Callable[[int], None] | None = None
) -> list[float]:
    """Return the logit of every pair.

    Args:
        model: the cross-encoder.
        pairs: query and document.
        batch_size: pairs of one forward pass, which have similar lengths.
        advance: called with the number of pairs done.

    Raises:
        InputError: a logit is not finite.
    """
    order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
    scores = [0.0] * len(pairs)
    for begin in range(0, len(order), _CHUNK * batch_size):
        chosen = order[begin : begin + _CHUNK * batch_size]
        found = model.predict(
            [pairs[index] for index in chosen],
            batch_size=batch_size,
            show_progress_bar=False,
            activation_fn=torch.nn.Identity(),
            convert_to_tensor=True,
        )
        for index, score in zip(chosen, found.float().tolist(), strict=True):
            if not torch.tensor(score).isfinite():
                raise InputError(index, "its score is not finite; the weights are damaged, or the training diverged")
            scores[index] = score
        if advance is not None:
            advance(len(chosen))
    return scores


def weights_hash(folder: Path) -> str:
    """Return the content hash of the weights in a folder.

    Raises:
        DataError: there are none.
    """
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise DataError(f"{folder}: neither *.safetensors nor pytorch_model.bin; save the model with save_pretrained()")
    return hash_parts(hash_file(file) for file in files)


def _download(config: CrossEncoderModelConfig) -> Path:
    from huggingface_hub import snapshot_download

    patterns = _FROM_HUB + ["*.py"] * config.trust_remote_code

    def fetch(allowed: list[str]) -> Path:
        return Path(
            snapshot_download(
                config.base, revision=config.revision, allow_patterns=allowed, ignore_patterns=NOT_FROM_HUB
            )
        )

    try:
        folder = fetch(patterns)
        if not any(folder.glob("*.safetensors")):
            # Older encoders have only these; transformers reads them as weights alone, which runs no code.
            folder = fetch([*patterns, "pytorch_model*.bin"])
    except Exception as error:  # the hub's client ends in errors of many kinds: offline, no such id, gated, malformed
        raise DataError(
            f"model.base {config.base!r} cannot be loaded ({first_line(error)}); "
            f"check the id or folder, connect to the hub, or set model.base to {BUNDLED_ENCODER}"
        ) from None
    return folder


def _transformer_folder(root: Path) -> Path:
    """Return the folder of the transformers model inside one of sentence-transformers, or the folder itself."""
    listed = root / "modules.json"
    if not listed.is_file():
        return root
    modules = read_json(listed)
    try:
        return root / str(modules[0]["path"])
    except (IndexError, KeyError, TypeError):
        raise DataError(f"{listed}: lists no modules with a path; save the model with save_pretrained()") from None


def _refuse_several_labels(base: str, settings: dict[str, Any]) -> None:
    names = settings.get("architectures") or [""]
    labels = settings.get("id2label")
    if str(names[0]).endswith("ForSequenceClassification") and labels is not None and len(labels) != 1:
        raise DataError(
            f"model.base {base!r} has {len(labels)} labels, a ranking loss needs one score per pair; "
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
