"""The card that MTEB files a model's results under. Imports MTEB, which takes seconds: import it inside functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from unimoe.data.sources.from_mteb import import_mteb

import_mteb()  # before anything of it is imported by name

from mteb.models.model_meta import ModelMeta, ScoringFunction  # noqa: E402


def model_meta(
    name: str, revision: str, kind: Literal["dense", "cross-encoder"], known: Mapping[str, Any] | None = None
) -> ModelMeta:
    """Return the card that MTEB files a model's results under, by name and revision.

    Args:
        name: with a ``/`` in it.
        revision: a hash of everything that changes scores.
        kind: what the model is.
        known: other fields of the card, by name.
    """
    facts: dict[str, Any] = {
        "name": name,
        "revision": revision,
        "model_type": [kind],
        "modalities": ["text"],
        "similarity_fn_name": ScoringFunction.COSINE if kind == "dense" else None,
    }
    empty = ModelMeta.create_empty(overwrites=facts)
    return empty.model_validate({**dict(empty), **known}) if known else empty
