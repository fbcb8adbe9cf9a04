"""The identity of a served model, with a fingerprint: its answers about fixed texts, which move when its weights do.

An API shows no weights. The first answers about the probe texts are kept in a file; later ones must be near them, since
a server's answers differ in their last bits from request to request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, InputError
from unimoe.core.io import Strict, cache_dir, hash_json, read_json, write_json
from unimoe.models.served.client import Client
from unimoe.results import safe_name

_QUERY = "How do plants turn sunlight into energy?"
PROBE_PAIRS = [
    (_QUERY, text)
    for text in (
        "Photosynthesis stores the energy of light in sugar, which chloroplasts make of water and carbon dioxide.",
        "Leaves are green because chlorophyll reflects green light.",
        "A solar panel turns sunlight into electricity.",
        "Animals get their energy from what they eat, and some of them eat plants.",
        "The plant was closed in 1987, and its workers moved to the city.",
        "Quicksort splits a list around a pivot and sorts both halves.",
    )
]
"""Of every degree of relevance: scores near 0 and 1 are those of any model."""

PROBE_TEXTS = [_QUERY, *(text for _, text in PROBE_PAIRS)]


class _Record(Strict):
    answers: list[float]


def served_identity(client: Client, ask: Callable[[], Sequence[float]], *asked: Any, room: float = 0.0) -> str:
    """Return what results store for the base model, ``id@hash``: API, server, model, revision, and the fingerprint.

    ``ask`` asks about the probe texts. A file in the user's cache keeps the first answers: their hash is the
    fingerprint; ``asked`` is what they depend on besides the server, its model and the settings that name it. Answers
    may move by ``room`` at least.

    Raises:
        DataError: the server does not answer, or its answers have moved, so that another model answers under the same
            name; names the server.
    """
    settings = client.settings
    known = [asked[0], client.host, settings.api, settings.model, settings.revision, *asked[1:]]
    record = cache_dir("served") / f"{hash_json(known)}.json"
    try:
        found = ask()
    except InputError as error:
        raise DataError(error.reason) from None
    if record.exists():
        first = read_json(record, _Record, "delete it, and the server's answers of now count as the first").answers
    else:
        of = {"server": client.url, **settings.model_dump(include={"api", "model", "revision"})}
        first = [float(f"{value:.6g}") for value in found]
        write_json(record, of | {"answers": first})
    room = max(room, settings.probe_tolerance * max(float(np.ptp(first)), 1e-6))
    moved = max(map(abs, np.subtract(found, first))) if len(found) == len(first) else np.inf
    if moved > room:
        far = f"by {moved:.3g}, with {room:.3g} allowed" if np.isfinite(moved) else "in their number"
        raise DataError(
            client.named(
                f"another model answers under this name than before: the scores of the probe texts moved {far}; serve "
                f"the old one, or say which it is with another served.revision (first answers: {record})"
            )
        )
    revision = settings.revision or "revision-not-given"
    probe = hash_json([f"{value:.6g}" for value in first])
    return f"served:{settings.api}:{client.host}:{settings.model}:{revision}@{probe}"


def served_name(settings: ServedConfig) -> str:
    """Return the name of the arm: the model's without its owner, and the API's."""
    return safe_name(f"{settings.model.rstrip('/').rpartition('/')[2]}.{settings.api}")
