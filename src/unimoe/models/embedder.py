"""What embeds texts: causal language models with adapters, encoders, servers and functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.config import Batches
from unimoe.core.errors import InputError
from unimoe.models.batching import used_budget
from unimoe.models.own_prompts import BARE, OwnPrompts
from unimoe.models.own_prompts import TextKind as TextKind
from unimoe.models.seen_queries import NOTHING_SEEN, SeenQueries

if TYPE_CHECKING:
    from unimoe.models.served.client import RequestEstimate

Advance = Callable[[int], None]
"""Called with the number of items done since the last call."""

Vectors = NDArray[np.float32]

Encode = Callable[[Sequence[str]], Vectors]
"""From N texts to ``(N, D)``."""

Spread = Callable[[Encode, Iterable[Sequence[str]]], Iterator[Vectors]]
"""Embeds several units by a function that embeds one, and yields their vectors in order; ``map`` is one."""


class Embedder(ABC):
    """Turns texts into vectors to be compared by dot product: of unit length, unless the model wants another.

    Attributes:
        base_identity: logical id and content hash of the weights, ``id@hash``.
        prompt_name: name and content hash of all settings that change a text's tokens or vector: prefixes, lengths,
            pooling.
        dimension: the width of a vector, where it is known before the first one.
        own_prompts: what it reads before the texts of MTEB's tasks where nothing else is configured.
        said: how it reads texts, in one line; empty where nothing is to be said.
        seen: the queries that trained and chose it, as far as its folder says.
        caveats: why its vectors may not be those of the model that people mean.
    """

    base_identity: str
    prompt_name: str
    dimension: int | None = None
    own_prompts: OwnPrompts = BARE
    said: str = ""
    seen: SeenQueries = NOTHING_SEEN
    caveats: tuple[str, ...] = ()

    def caveats_on(self, queries: Mapping[str, str]) -> list[str]:
        """Return the caveats of its scores on queries, id to text."""
        return [*self.caveats, *self.seen.caveats(queries)]

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where vectors are computed, or arrive."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the computation; vectors are float32."""

    @property
    def place(self) -> torch.device | str:
        """Where the weights are; a description where torch does not know the place."""
        return self.device

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return None

    @abstractmethod
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
        """Embed N texts: ``(N, D)`` float32, in their order.

        Args:
            texts: N texts.
            kind: their role, which chooses the configured prefix.
            prefix: a prefix instead of the configured one.
            max_length: tokens of one text, prefix included, if fewer than the model's limit.
            advance: called with the number of texts done, after each batch.
            batches: what one forward pass reads, by default the ``token_budget`` that suits the device.

        Raises:
            InputError: a text has no tokens, or its embedding is not finite or zero; carries its index.
            UsageError: ``max_length`` leaves no room for a text.
            DataError: one text alone does not fit in memory.
        """

    def budget(self, token_budget: int | None = None, batch_size: int | None = None) -> int | None:
        """Return the tokens of one forward pass, fewer once memory ran out; None where texts are counted instead."""
        if isinstance(self.place, str):
            return None
        return used_budget(self.device, self.reduced_budget, token_budget, batch_size)

    def asked(self, texts: int, characters: int) -> RequestEstimate | None:
        """Return what a server will be asked about texts, of so many characters together; None without one."""
        return None

    def spread(self, **options: Any) -> Spread:
        """Return what embeds units of texts: a function of this process, or the workers of a cluster.

        ``options`` are the arguments of ``encode`` there, which the function has too.
        """
        return map


def refuse_zero_vectors(vectors: Vectors) -> None:
    """Raise an ``InputError`` about a vector of zeros: its cosine with anything is undefined."""
    zero = np.flatnonzero(~vectors.any(axis=1))
    if len(zero):
        raise InputError(int(zero[0]), "the embedding is zero; try float32, or another model")
