"""Adapters of PEFT in a folder: they are put on a model, and what does not fit it is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unimoe.core.errors import DataError, first_few
from unimoe.core.io import write_text
from unimoe.models.folder import ModelFolder, loadable
from unimoe.models.identity import ADAPTER_SETTINGS, read_settings
from unimoe.models.model_files import first_line, silence_transformers

_OUTER = "base_model.model."
"""What PEFT writes before the names of a model's weights."""


def put_adapter(model: Any, folder: Path, base: str) -> Any:
    """Put the adapters saved in ``folder`` on a model, frozen, and return the PEFT model; ``base`` names the model."""
    import peft

    try:
        with silence_transformers():
            adapted = peft.PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=False).eval()
    except Exception as error:  # of many kinds, as damaged files are
        raise DataError(f"{folder}: the adapter does not fit {base} ({first_line(error)})") from None
    refuse_unfit(adapted, folder, base)
    return adapted


def load_library_model(kind: str, folder: ModelFolder, **options: Any) -> Any:
    """Load a model of sentence-transformers by its class, with the adapter of its folder; options are the class's."""
    import sentence_transformers

    with loadable(folder) as root:
        model = getattr(sentence_transformers, kind)(str(root), local_files_only=True, **options)
    if folder.base:
        model.load_adapter(str(folder.inner))
        refuse_unfit(model.transformers_model, folder.inner, folder.base.name)
    return model


def refuse_unfit(adapted: Any, folder: Path, base: str) -> None:
    """Refuse adapters of which PEFT replaced missing weights by new ones, or dropped some that it did not know."""
    import peft

    # Without embeddings: the default, "auto", asks the hub for the base model's config.
    there = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    wanted, stored = {name.removeprefix(_OUTER) for name in there}, stored_weights(folder)
    # An adapter of embeddings comes with their own weights, which PEFT loads too.
    taken = wanted | {name.removeprefix(_OUTER) for name in adapted.state_dict()}
    unmatched = sorted((wanted - stored) | (stored - taken))
    if unmatched:
        verb = "is" if len(unmatched) == 1 else "are"
        raise DataError(f"{folder}: the adapter does not fit {base} ({first_few(unmatched)} {verb} on one side only)")


def stored_weights(folder: Path) -> set[str]:
    """Return the names of the weights in an adapter's folder, as the model calls them."""
    import peft

    try:
        weights = peft.load_peft_weights(str(folder), device="cpu")
    except Exception as error:
        raise DataError(f"{folder}: its weights cannot be read ({first_line(error)}); save it again") from None
    return {name.removeprefix(_OUTER) for name in weights}


def name_base(folder: Path, base: str, revision: str | None) -> None:
    """Name the base in an adapter's settings as others find it, not by its path here, and sort what PEFT keeps as sets.

    Args:
        folder: of the adapter.
        base: a hub id, or the folder of a model of transformers.
        revision: of the hub; None for the newest.
    """
    path = folder / ADAPTER_SETTINGS
    settings = read_settings(path) | {"base_model_name_or_path": base, "revision": revision}
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    write_text(path, json.dumps(settings, indent=2) + "\n")
