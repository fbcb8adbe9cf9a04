"""An embedder behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import torch

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import cache_dir, hash_json
from unimoe.models.batching import batches
from unimoe.models.embedder import Advance, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.prompts import well_formed
from unimoe.models.served.answers import KeptVectors
from unimoe.models.served.api import API, cut, vector
from unimoe.models.served.asking import Asker, Request
from unimoe.models.served.client import Client
from unimoe.models.served.probe import PROBE_TEXTS, fingerprint, identity, record_file, served_name
from unimoe.models.served.usage import CHARACTERS_PER_TOKEN, Estimate, estimate, summed


class ServedEmbedder:
    """Embeds texts by a server; satisfies ``Embedder``.

    Args:
        url: its address.
        settings: how it is asked.
        prefixes: what goes before the texts of a kind.
        record: keeps the first answers about the probe texts; by default a file in the user's cache.

    Attributes:
        name: of the arm.
        prompt_name: name and hash of the prefixes.
        usage: what all requests so far cost, by name.
        place: where the weights are, in words.

    Raises:
        UsageError: the API does not embed, the batch is too large for it, or what asks is not installed.
    """

    place = "a server"

    def __init__(
        self,
        url: str,
        settings: ServedConfig,
        prefixes: Mapping[TextKind, str] | None = None,
        record: Path | None = None,
    ) -> None:
        api: API = APIS[settings.api]
        if api.embed is None:
            raise UsageError(f"served.api {settings.api}: it does not embed; use openai or tei-embed")
        self._client, self._settings, self._body = Client(url, settings), settings, api.embed.body
        self._asker = Asker(self._client, settings, api.embed, vector)
        self._prefixes = dict(prefixes or {})
        self._record = record or record_file(self._client, settings, "embed", [])
        self.name = served_name(settings)
        self._cut_at = settings.max_length if api.embed.refuses_long else None
        asked = self._prefixes if self._cut_at is None else [self._prefixes, self._cut_at]
        self.prompt_name = f"server@{hash_json(asked)}"
        self.usage: dict[str, float] = {}
        self._kept: KeptVectors | None = None  # until it is known which model answers

    @cached_property
    def base_identity(self) -> str:
        """API, server, model, revision and fingerprint; the probe texts are asked about.

        Raises:
            DataError: the server does not answer, or another model answers than before.
        """
        try:
            found = self._asked(PROBE_TEXTS, self._asker.batch)
        except InputError as error:
            raise DataError(error.reason) from None
        values = found.ravel().tolist()
        known = identity(self._client, self._settings, fingerprint(self._client, self._settings, values, self._record))
        at_server = None if self._cut_at else self._settings.max_length
        self._kept = KeptVectors(cache_dir("served", "vectors", hash_json([known, at_server])))
        return known

    @property
    def device(self) -> torch.device:
        """Where vectors arrive."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """That of the vectors; the server's own is unknown."""
        return torch.float32

    def estimate(self, texts: Sequence[str]) -> Estimate:
        """Return what embedding texts will ask."""
        return self.estimate_of(len(texts), sum(map(len, texts)))

    def estimate_of(self, texts: int, characters: int) -> Estimate:
        """Return what embedding this many texts, of so many characters together, will ask."""
        return estimate(ceil(texts / self._asker.batch), characters / CHARACTERS_PER_TOKEN, self._settings)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Embed texts; arguments and result as in ``Embedder``. Requests have ``batch_size`` texts at most.

        Raises:
            UsageError: a length is asked for, which the server alone decides.
            InputError: the server does not answer, or not with a vector for each text; carries the text's index.
        """
        if max_length is not None:
            raise UsageError(
                "a server cuts texts at its own limit; leave retrieval.query_length and retrieval.document_length null"
            )
        before = self._prefixes.get(kind, "") if prefix is None else prefix
        prepared = [cut(well_formed(before + text), self._cut_at) for text in texts]
        return self._asked(prepared, min(self._asker.batch, batch_size or self._asker.batch), advance)

    def _asked(self, prepared: Sequence[str], size: int, advance: Advance | None = None) -> Vectors:
        """Return the vectors of texts as they are, ``size`` of them in a request."""
        parts = list(batches(prepared, size))
        kept = [self._kept.read(part) if self._kept else None for part in parts]
        found = {number: vectors for number, vectors in enumerate(kept) if vectors is not None}
        if advance and found:
            advance(sum(map(len, found.values())))
        asked = [number for number in range(len(parts)) if number not in found]
        requests = [
            Request(number * size, len(parts[number]), self._body(self._settings, parts[number])) for number in asked
        ]
        for answered, rows, usage in self._asker.ask(requests):
            number = asked[answered]
            self.usage = summed([self.usage, usage])
            found[number] = _of_unit_length(rows, number * size)
            if self._kept:
                self._kept.write(parts[number], found[number])
            if advance:
                advance(len(rows))
        return _joined([found[number] for number in range(len(parts))])


def _of_unit_length(rows: Sequence[Sequence[float]], begin: int) -> Vectors:
    """Return the vectors of a request as rows of unit length; ``begin`` is the index of its first text."""
    for index, row in enumerate(rows):
        _refuse_other_length(begin + index, len(row), len(rows[0]))
    vectors = np.array(rows, dtype=np.float64)
    try:
        refuse_zero_vectors(vectors.astype(np.float32))
    except InputError as error:
        raise InputError(begin + error.index, error.reason) from None
    normalised: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normalised


def _joined(parts: Sequence[Vectors]) -> Vectors:
    begin = 0
    for part in parts:
        _refuse_other_length(begin, part.shape[1], parts[0].shape[1])
        begin += len(part)
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def _refuse_other_length(index: int, length: int, first: int) -> None:
    if length != first:
        raise InputError(index, f"the server answered a vector of {length} numbers after one of {first}")
