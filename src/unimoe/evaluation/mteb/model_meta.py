"""The card that MTEB files a model's results under. Imports MTEB, which takes seconds: import it inside functions."""

from __future__ import annotations

from typing import Literal

from unimoe.data.sources.from_mteb import import_mteb

import_mteb()  # before anything of it is imported by name

from mteb.models.model_meta import ModelMeta, ScoringFunction  # noqa: E402


def model_meta(name: str, revision: str, kind: Literal["dense", "cross-encoder"]) -> ModelMeta:
    """Return the card that MTEB files a model's results under, by name and revision.

    Args:
        name: with a ``/`` in it.
        revision: a hash of everything that changes scores.
        kind: what the model is.
    """
    facts = {
        "name": name,
        "revision": revision,
        "model_type": [kind],
        "modalities": ["text"],
        "similarity_fn_name": ScoringFunction.COSINE if kind == "dense" else None,
    }
    return ModelMeta.create_empty(overwrites=facts)
