"""The protocol of models that embed texts: causal language models with adapters, and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.config import Batches
from unimoe.core.errors import InputError

if TYPE_CHECKING:
    from unimoe.models.own_prompts import OwnPrompts

TextKind = Literal["query", "document", "plain"]
"""The role of a text: retrieval has queries and documents, symmetric tasks (STS, clustering) have neither."""

Advance = Callable[[int], None]
"""Called with the number of items done since the last call."""

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors whose dot product compares them: of unit length, unless the model wants another."""

    @property
    def base_identity(self) -> str:
        """Logical id and content hash of the weights, ``id@hash``."""

    @property
    def prompt_name(self) -> str:
        """Name and content hash of all settings that change a text's tokens or vector: prefixes, lengths, pooling."""

    @property
    def own_prompts(self) -> OwnPrompts:
        """What it reads before the texts of MTEB's tasks where nothing else is configured."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation; vectors are float32."""

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


def refuse_zero_vectors(vectors: Vectors) -> None:
    """Raise an ``InputError`` about a vector of zeros, whose cosine with anything is undefined."""
    zero = np.flatnonzero(~vectors.any(axis=1))
    if len(zero):
        raise InputError(int(zero[0]), "the embedding is zero; try float32, or another model")
