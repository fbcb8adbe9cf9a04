"""An embedder behind a server, which keeps the vectors it was paid for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Unpack

import numpy as np
import torch

from unimoe.config import Batches
from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import InputError, UsageError
from unimoe.core.io import atomic_path, cache_dir, hash_json, hash_parts
from unimoe.models.batching import batches as cut
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.own_prompts import BARE, REGISTRY, OwnPrompts, find_served, prompts_said
from unimoe.models.prompts import well_formed
from unimoe.models.served.api import API, vector
from unimoe.models.served.client import CHARACTERS_PER_TOKEN, Client, RequestEstimate, estimate
from unimoe.models.served.probe import PROBE_TEXTS, served_identity, served_name

_KEPT_SECONDS = 14 * 24 * 3600


class ServedEmbedder(Embedder):
    """Embeds texts by a server at an address.

    Args:
        url: its address.
        settings: how it is asked.
        prefixes: what goes before the texts of a kind; None for the model's own, which mteb's registry may know by the
            name that the server has for it.

    Attributes:
        name: of the arm.
        own_prompts: what goes before the texts of a task.
        said: in one line, which prompts were found.
        usage: what all requests so far cost, by name.
    """

    place = "a server"  # of the weights
    device = torch.device("cpu")  # where vectors arrive
    dtype = torch.float32  # of the vectors; the server's own is unknown

    def __init__(self, url: str, settings: ServedConfig, prefixes: Mapping[TextKind, str | None] | None = None) -> None:
        api: API = APIS[settings.api]
        if api.embed is None:
            raise UsageError(f"served.api {settings.api}: it does not embed; use openai or tei-embed")
        self._client, self._settings, self._endpoint = Client(url, settings), settings, api.embed
        self._batch = api.embed.items(settings)
        self.own_prompts, self.said = _served_prompts(settings, prefixes or {})
        self._prefixes = self.own_prompts.by_kind
        self._cut_at = settings.max_length if api.embed.refuses_long else None
        self.name = served_name(settings)
        self.prompt_name = f"server@{hash_json([self._prefixes, self._cut_at] if self._cut_at else self._prefixes)}"
        self.usage = self._client.usage
        self._folder: Path | None = None  # of vectors, once it is known which model answers
        self._width = 0

    @cached_property
    def base_identity(self) -> str:  # type: ignore[override]  # the server is asked when it is first read
        """API, server, model, revision and fingerprint; the probe texts are asked about."""
        known = served_identity(self._client, lambda: self._embed(PROBE_TEXTS, self._batch).ravel().tolist(), "embed")
        at_server = None if self._cut_at else self._settings.max_length
        self._folder = cache_dir("served", "vectors", hash_json([known, at_server]))
        for file in self._folder.glob("*.npy"):
            if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                file.unlink(missing_ok=True)
        return known

    def asked(self, texts: int, characters: int) -> RequestEstimate:
        """Return what embedding this many texts, of so many characters together, will ask."""
        return estimate(ceil(texts / self._batch), characters / CHARACTERS_PER_TOKEN, self._settings)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        advance: Advance | None = None,
        **batches: Unpack[Batches],
    ) -> Vectors:
        """Embed texts; see ``Embedder``. Requests have ``batch_size`` texts at most; the server decides on lengths."""
        if max_length is not None:
            raise UsageError(
                "a server cuts texts at its own limit; leave retrieval.query_length and retrieval.document_length null"
            )
        before = self._prefixes.get(kind, "") if prefix is None else prefix
        prepared = [well_formed(before + text) for text in texts]
        if self._cut_at:  # The server's tokenizer is not here: English has four bytes a token, other texts three.
            prepared = [text.encode()[: 3 * self._cut_at].decode(errors="ignore") for text in prepared]
        return self._embed(prepared, min(self._batch, batches.get("batch_size") or self._batch), advance)

    def _embed(self, texts: Sequence[str], size: int, advance: Advance | None = None) -> Vectors:
        found = self._client.ask_all(self._vectors, list(cut(texts, size)), advance)
        return np.concatenate(found) if found else np.empty((0, 0), np.float32)

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of unit length, by one request unless they were kept."""
        file = self._folder / f"{hash_parts(texts)}.npy" if self._folder else None
        if file and file.exists():
            kept: Vectors = np.load(file)
            return kept
        rows, _ = self._client.ask(self._endpoint, vector, len(texts), texts)
        for index, row in enumerate(rows):
            self._width = self._width or len(row)
            if len(row) != self._width:
                lengths = f"a vector of {len(row)} numbers after one of {self._width}"
                raise InputError(index, self._client.named(f"answered {lengths}; check served.model"))
        exact = np.array(rows, dtype=np.float64)
        refuse_zero_vectors(exact.astype(np.float32))
        vectors: Vectors = (exact / np.linalg.norm(exact, axis=1, keepdims=True)).astype(np.float32)
        if file:
            with atomic_path(file) as path, path.open("wb") as opened:
                np.save(opened, vectors)
        return vectors


def _served_prompts(settings: ServedConfig, prefixes: Mapping[TextKind, str | None]) -> tuple[OwnPrompts, str]:
    """Return a served model's prompts, those of the config first, and what is said of them."""
    registered = find_served(settings.model)
    own = registered.own_prompts({}, None) if registered and registered.reads else BARE
    stated = {kind: prefix for kind, prefix in prefixes.items() if prefix is not None}
    by_kind = dict.fromkeys(prefixes, "") | own.by_kind | stated
    own = replace(own, by_kind=by_kind, stated=frozenset(stated))
    said = prompts_said(own, registered, "of the config")
    if not own.stated and not (registered and registered.reads):
        said = f"no prompts: {REGISTRY} knows none of served.model {settings.model}, so texts are sent as they are"
    return own, said
