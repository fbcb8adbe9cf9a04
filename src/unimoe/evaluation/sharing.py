"""Texts that the workers of a model embed in units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from unimoe.cluster.work import Progress, Workers
from unimoe.core.errors import InputError
from unimoe.models.embedder import Vectors
from unimoe.retrieval.embeddings import Encode, Spread, cut_units

ENCODED_CHARACTERS = 2**18
"""Text of a part of ``encode_texts``: a few forward passes of a GPU, seconds of a small model on two cores."""


def shared(workers: Workers, **options: Any) -> Spread:
    """Return what embeds units of texts by the workers of a model.

    ``options`` are the arguments of ``Embedder.encode`` elsewhere; the function of this process has the same.
    """

    def spread(encode: Encode, units: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        parts = ({"texts": list(unit), "options": options} for unit in units)
        return workers.compute("encode", parts, lambda part: encode(part["texts"]))

    return spread


def encode_texts(encode: Encode, texts: Sequence[str], spread: Spread, progress: Progress) -> Vectors:
    """Embed N texts in memory, in units that depend on the texts alone; report every unit.

    Returns:
        ``(N, D)`` in the order of ``texts``.

    Raises:
        InputError: a text cannot be embedded; carries its index in ``texts``.
    """
    units = [np.sort(unit) for unit in cut_units([len(text) for text in texts], ENCODED_CHARACTERS)]
    found: list[Vectors] = []
    try:
        for vectors in spread(encode, ([texts[row] for row in unit] for unit in units)):
            progress.part(len(vectors))
            found.append(vectors)
    except InputError as error:
        raise InputError(int(units[len(found)][error.index]), error.reason) from None
    if len(found) < 2:
        return found[0] if found else encode([])
    whole = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
    whole[np.concatenate(units)] = np.concatenate(found)
    return whole
