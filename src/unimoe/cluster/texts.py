"""Texts and token ids as arrays, which processes of one machine read from shared memory without a copy of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from unimoe.core.io import hash_parts


@dataclass(frozen=True)
class TextTable(Mapping[str, str]):
    """Texts by id.

    Attributes:
        ids: N ids.
        letters: the texts one after the other in UTF-8, ``(bytes,)`` uint8.
        ends: where each text ends, ``(N,)``.
    """

    ids: Sequence[str]
    letters: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> TextTable:
        """Make a table of texts."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts.values()]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(list(texts), np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    @cached_property
    def content(self) -> str:
        """The content hash."""
        return hash_parts([*self.ids, self.letters.tobytes(), self.ends.tobytes()])

    def __getitem__(self, key: str) -> str:
        row = self._row[key]
        begin = self.ends[row - 1] if row else 0
        return self.letters[begin : self.ends[row]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _row(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.ids)}


@dataclass(frozen=True)
class PairTexts:
    """The texts of the pairs of an evaluation."""

    queries: TextTable
    documents: TextTable

    @cached_property
    def content(self) -> str:
        """The content hash."""
        return hash_parts([self.queries.content, self.documents.content])


@dataclass(frozen=True)
class TokenTable:
    """The token ids of N prompts.

    Attributes:
        ids: of all prompts one after the other, ``(tokens,)`` int32.
        ends: where each prompt ends, ``(N,)``.
    """

    ids: NDArray[np.int32]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]]) -> TokenTable:
        """Make a table of token ids."""
        ends = np.cumsum([len(ids) for ids in prompts], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(prompts), dtype=np.int32, count=int(ends[-1])), ends)

    def prompts(self) -> list[list[int]]:
        """Return the token ids of each prompt."""
        return [ids.tolist() for ids in np.split(self.ids, self.ends[:-1])]
