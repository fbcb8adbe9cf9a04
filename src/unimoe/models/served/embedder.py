"""An embedder behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import torch

from unimoe.config.served import APIS, ServedConfig
from unimoe.errors import DataError, InputError, UsageError
from unimoe.io import hash_json
from unimoe.models.batching import batches
from unimoe.models.embedder import Advance, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.prompts import well_formed
from unimoe.models.served.api import API, vector
from unimoe.models.served.asking import Asker
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
        self.prompt_name = f"server@{hash_json(self._prefixes)}"
        self.usage: dict[str, float] = {}

    @cached_property
    def base_identity(self) -> str:
        """API, server, model, revision and fingerprint; the probe texts are asked about.

        Raises:
            DataError: the server does not answer, or another model answers than before.
        """
        try:
            found = self.encode(PROBE_TEXTS, prefix="")
        except InputError as error:
            raise DataError(error.reason) from None
        values = found.ravel().tolist()
        return identity(self._client, self._settings, fingerprint(self._client, self._settings, values, self._record))

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
        prepared = [well_formed(before + text) for text in texts]
        parts = list(batches(prepared, min(self._asker.batch, batch_size or self._asker.batch)))
        rows: list[list[float]] = []
        for vectors, usage in self._asker.ask([(len(part), self._body(self._settings, part)) for part in parts]):
            self.usage = summed([self.usage, usage])
            rows += vectors
            if advance:
                advance(len(vectors))
        return _of_unit_length(rows)


def _of_unit_length(rows: Sequence[Sequence[float]]) -> Vectors:
    for index, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(index, f"the server answered a vector of {len(row)} numbers after one of {len(rows[0])}")
    vectors = np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)
    refuse_zero_vectors(vectors.astype(np.float32))
    normalised: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normalised
