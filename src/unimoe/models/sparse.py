"""Sparse encoders, such as SPLADE: weights of words, and the dot product or cosine of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError
from unimoe.models.matcher import Matcher, Scores


class SparseModel(Matcher):
    """A ``SparseEncoder`` of sentence-transformers; texts become rows of a ``csr_array`` of float32, on the CPU."""

    kind, stated, bare = "sparse", ("SparseEncoder",), ("ForMaskedLM",)

    def __init__(self, model: Any, config: EncoderConfig) -> None:
        super().__init__(model, config)
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise DataError(
                f"{config.base!r}: its similarity_fn_name is {model.similarity_fn_name}, and a sparse search compares "
                "by cosine or dot product; use another encoder"
            )

    def similarity(self, queries: Any, documents: Any) -> Scores:
        """Return the products of all queries and documents; see ``Matcher``."""
        return np.asarray((queries @ documents.T).toarray(), dtype=np.float32)

    def _pairwise(self, queries: Any, first: list[int], documents: Any, second: list[int]) -> Scores:
        return np.asarray(queries[first].multiply(documents[second]).sum(axis=1), dtype=np.float32)

    def _compute(self, encode: Callable[..., Any]) -> Any:
        found = encode(convert_to_sparse_tensor=False).float().to_sparse().cpu()
        rows, columns = found.indices().numpy().astype(np.int32)
        starts = np.searchsorted(rows, np.arange(len(found) + 1))
        encoded = sparse.csr_array((found.values().numpy(), columns, starts), shape=tuple(found.shape))
        if self.model.similarity_fn_name == "cosine":
            lengths = np.sqrt(encoded.multiply(encoded).sum(axis=1))
            encoded.data /= np.maximum(np.repeat(lengths, np.diff(starts)), 1e-12)
        return encoded

    def _joined(self, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
        return sparse.vstack(parts, format="csr")[order]
