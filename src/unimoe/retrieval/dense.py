"""Dense retrieval: a corpus is embedded once, and searched exactly by inner product, of documents or their passages.

torch           blocks of the corpus times all queries; memory does not grow with the corpus, which may be a mapped file
faiss           FAISS's IndexFlatIP, which holds the whole corpus in memory as float32

Float32 products depend in their last bits on the shape of a block, the number of threads and the device. So they only
choose candidates, and their scores are computed again in float64: equal documents tie, wherever they are.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.config import Batches, DenseConfig
from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError, named_inputs
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.batching import to_device
from unimoe.models.embedder import Advance, Embedder, Encode, Spread
from unimoe.retrieval.embeddings import Embedded, kept_embeddings

Backend = Literal["torch", "faiss"]

Corpus = NDArray[np.floating]
RowNumbers = NDArray[np.int64]


@dataclass(frozen=True)
class EmbeddedCollection:
    """The queries of a collection by id, ``(Q, D)`` in memory, and its documents.

    Attributes:
        device: of a search.
        excluded: documents that the collection leaves out, by query.
        items: texts that were embedded now, in so many ``seconds``, at a ``place``; the others were kept.
    """

    query_ids: list[str]
    queries: NDArray[np.float32]
    documents: Embedded
    device: torch.device
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    items: int = 0
    seconds: float = 0.0
    place: str = "cpu"

    def nearest(self, config: DenseConfig, **how: Any) -> Run:
        """Find the documents nearest to each query, as many as ``retrieval.depth`` says; see ``search``."""
        return search(
            self.queries,
            self.query_ids,
            self.documents.vectors,
            self.documents.ids,
            config.depth,
            starts=self.documents.starts,
            backend=config.backend,
            device=self.device,
            excluded=self.excluded,
            **how,
        )


def dense_run(model: Embedder, collection: Collection, config: DenseConfig, **how: Any) -> Run:
    """Embed a corpus and its queries as ``embed_collection`` does, and find the documents nearest to each query."""
    return embed_collection(model, collection, config, **how).nearest(config)


def embed_collection(
    model: Embedder,
    collection: Collection,
    config: DenseConfig,
    *,
    store_dir: Path | None = None,
    weights: str | None = None,
    advance: Advance | None = None,
    spread: Spread = map,
    place: str = "cpu",
    **batches: Unpack[Batches],
) -> EmbeddedCollection:
    """Embed the queries of a collection and its documents, or passages as ``as_read`` returns them.

    The vectors of these are kept in ``store_dir``, by default in the user's cache; see ``kept_embeddings``.
    """
    query_ids, texts = list(collection.queries), list(collection.queries.values())
    start, items = time.perf_counter(), len(query_ids)

    def counted(encode: Encode, units: Iterable[Sequence[str]]) -> Iterator[NDArray[np.float32]]:
        nonlocal items
        for vectors in spread(encode, units):
            items += len(vectors)
            yield vectors

    with named_inputs(lambda index: f"{collection.name}, query {query_ids[index]!r}"):
        # first, so that a broken model is noticed in seconds
        queries = model.encode(texts, kind="query", max_length=config.query_length, **batches)
    if advance:
        advance(len(query_ids))
    documents = kept_embeddings(
        model,
        collection.corpus,
        folder=store_dir,
        weights=weights,
        storage=config.storage,
        max_length=config.document_length,
        spread=counted,
        batches=batches,
        name=collection.name,
        advance=advance,
    ).by_document()
    seconds = time.perf_counter() - start
    left_out = {key: found for key in query_ids if (found := collection.left_out(key))}
    return EmbeddedCollection(query_ids, queries, documents, model.device, left_out, items, seconds, place)


def search(
    queries: NDArray[np.float32],
    query_ids: Sequence[str],
    vectors: Corpus,
    ids: Sequence[str],
    k: int,
    *,
    starts: RowNumbers | None = None,
    backend: Backend = "torch",
    device: torch.device | str = "cpu",
    excluded: Mapping[str, Iterable[str]] | None = None,
    block_bytes: int | None = None,
    candidates: Sequence[RowNumbers] | None = None,
) -> Run:
    """Find the ``k`` documents of highest inner product for every query, best first.

    Queries are ``(Q, D)`` float32, documents ``(N, D)`` float32 or float16, in memory or mapped; their ids are in the
    order of rows. Ties, also those at the cut, break by document id descending, as in trec_eval; with FAISS those of
    some k / 8 documents at the cut. A DataError names a text without a finite vector.

    ``starts`` has the first row of each document, which has the score of its best row; None where each has one, and
    with FAISS, which finds rows. ``excluded`` documents of a query are left out before the cut. ``candidates``, places
    in ``ids``, are all that is searched for each query. ``block_bytes`` is the size of a block of the corpus, by
    default what suits the device.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    _refuse_not_finite(queries, query_ids, "query")
    on_cpu = backend == "faiss" or torch.device(device).type == "cpu"
    step, suits = (256, 2**25) if on_cpu else (4096, 2**29)
    # A block of the corpus and its scores take so many bytes at most, each.
    rows = max(1, (block_bytes or suits) // (4 * max(1, vectors.shape[1], min(step, len(query_ids)))))
    edges = np.append(np.arange(len(ids)) if starts is None else starts, len(vectors))
    begins = np.searchsorted(edges, np.arange(0, len(vectors), rows))  # a block holds whole documents
    blocks = [slice(*block) for block in pairwise(np.unique([*begins, len(ids)]).tolist())]
    left_out = [set((excluded or {}).get(key, ())) for key in query_ids]
    wanted = k + max(map(len, left_out), default=0)
    parts = [queries[begin : begin + step] for begin in range(0, len(queries), step)]
    pools = [_Candidates(part, vectors, edges, ids, wanted) for part in parts]
    if candidates is not None:
        for number, pool in enumerate(pools):
            own = candidates[number * step : (number + 1) * step]
            query = np.arange(len(own)).repeat([*map(len, own)])
            pool.add(query, np.concatenate(own), np.zeros(len(query), dtype=np.float32))
    elif backend == "faiss":
        _find_by_faiss(pools, vectors, blocks, min(len(ids), wanted + wanted // 8 + 8))
    else:
        before = torch.get_float32_matmul_precision()
        # TF32, which a program may ask for, errs by more than is expected.
        torch.set_float32_matmul_precision("highest")
        try:
            _find_by_torch(pools, vectors, edges, ids, blocks, wanted, torch.device(device))
        finally:
            torch.set_float32_matmul_precision(before)
    run: Run = {}
    best = (best for pool in pools for best in pool.best())
    for query_id, found, but in zip(query_ids, best, left_out, strict=True):
        run[query_id] = dict(islice(((key, score) for key, score in found.items() if key not in but), k))
    return run


class _Candidates:
    """The documents that may be among the ``k`` best of some queries, as pairs of both with a float32 score.

    The k best scores seen, the lowest of them t, belong to documents with exact scores of at least t - e, where e is
    the most that a score can err. A document below t - 2e cannot be among the best and is dropped.
    """

    def __init__(
        self, queries: NDArray[np.float32], vectors: Corpus, edges: RowNumbers, ids: Sequence[str], k: int
    ) -> None:
        self.queries, self._vectors, self._edges, self._ids, self._k = queries, vectors, edges, ids, k
        self._lengths, self.kth = np.linalg.norm(queries.astype(np.float64), axis=1), np.full(len(queries), -np.inf)
        self.longest = 0.0  # of the documents so far
        self._query = self._document = np.empty(0, dtype=np.int64)
        self._score = np.empty(0, dtype=np.float32)

    @property
    def bounds(self) -> NDArray[np.float32]:
        """For each query the float32 score below which a document cannot be among the best, ``(Q,)``."""
        width = self.queries.shape[1]
        # Sums in any order err by (D - 1) u; the rest is for the roundings of score, bound and lengths.
        error = 1.01 * (width + 8) * 2.0**-24 * self._lengths * self.longest + width * float(np.finfo(np.float32).tiny)
        return np.asarray(self.kth - 2 * error, dtype=np.float32)

    def add(self, query: RowNumbers, document: RowNumbers, score: NDArray[np.float32]) -> None:
        """Add M pairs, each once."""
        self._query = np.concatenate([self._query, query])
        self._document = np.concatenate([self._document, document])
        self._score = np.concatenate([self._score, score])
        wanted = self._k * len(self.queries)
        if len(self._document) > 2 * wanted:
            self._cut()
            if len(self._document) > 1.5 * wanted:  # within the error of each other: the embeddings have collapsed
                self._cut(exactly=True)

    def best(self) -> Iterator[dict[str, float]]:
        """Yield ids and exact scores of the best documents of each query, best first."""
        self._cut(exactly=True)
        cuts = np.searchsorted(self._query, np.arange(1, len(self.queries)))
        for found, scores in zip(np.split(self._document, cuts), np.split(self._score, cuts), strict=True):
            yield dict(zip((self._ids[place] for place in found.tolist()), scores.tolist(), strict=True))

    def _cut(self, *, exactly: bool = False) -> None:
        """Sort by queries and falling scores, read off the k-th best, and drop what is not among the k best."""
        if exactly:
            self._score = _exact(self.queries, self._query, self._vectors, self._edges, self._document)
            names = np.array([self._ids[place] for place in self._document.tolist()], dtype=str)
            self._keep(np.argsort(names)[::-1])  # of equal scores the higher id comes first
        self._keep(np.lexsort((-self._score, self._query)))
        place = np.arange(len(self._query)) - np.searchsorted(self._query, self._query)
        last = place == self._k - 1
        self.kth[self._query[last]] = self._score[last]
        self._keep(place < self._k if exactly else self._score >= self.bounds[self._query])

    def _keep(self, chosen: NDArray[Any]) -> None:
        self._query, self._document, self._score = self._query[chosen], self._document[chosen], self._score[chosen]


def _exact(
    queries: Corpus, query: RowNumbers, vectors: Corpus, edges: RowNumbers, document: RowNumbers
) -> NDArray[np.float32]:
    """Return float64 inner products of M pairs rounded to float32, each summed over its document's best row alone."""
    scores = np.empty(len(document), dtype=np.float32)
    rows = max(1, len(vectors) // max(1, len(edges) - 1))  # of a document
    step = max(1, 2**19 // max(1, queries.shape[1] * rows))  # more would leave the caches
    for begin in range(0, len(scores), step):
        part = slice(begin, begin + step)
        first, counts = edges[document[part]], edges[document[part] + 1] - edges[document[part]]
        places = np.cumsum(counts) - counts
        row = np.arange(counts.sum()) + np.repeat(first - places, counts)
        # A mapped file without its class: a subclass would make every operation slower.
        products = np.asarray(vectors[row]).astype(np.float64, order="C")
        products *= queries[np.repeat(query[part], counts)]
        scores[part] = np.maximum.reduceat(products.sum(axis=1), places)
    return scores


def _find_by_torch(
    pools: list[_Candidates],
    vectors: Corpus,
    edges: RowNumbers,
    ids: Sequence[str],
    blocks: list[slice],
    k: int,
    device: torch.device,
) -> None:
    with warnings.catch_warnings():  # torch warns of arrays it must not write to; nothing writes here
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        corpus = torch.from_numpy(np.asarray(vectors))
    # One query is taken twice: on an EPYC, MKL multiplies by two vectors in 40 % of its time for one.
    parts = (pool.queries.repeat(2, axis=0) if len(pool.queries) == 1 else pool.queries for pool in pools)
    held = [torch.from_numpy(part).to(device) for part in parts]
    for block in blocks:
        span = slice(edges[block.start], edges[block.stop])
        of = np.repeat(np.arange(block.start, block.stop), np.diff(edges[block.start : block.stop + 1]))
        rows = corpus[span].to(device, torch.float32)
        longest = float(torch.linalg.vector_norm(rows, dim=1).max())
        if not math.isfinite(longest):
            _refuse_not_finite(np.asarray(vectors[span]), [ids[place] for place in of], "document")
        for pool, part in zip(pools, held, strict=True):
            pool.longest = max(pool.longest, longest)
            # Documents first: in this order the product is up to twice as fast for a few dozen queries.
            scores = torch.mm(rows, part.T)[:, : len(pool.queries)]
            if block.stop - block.start < len(rows):
                place = to_device(torch.from_numpy(of - block.start), device)[:, None].expand_as(scores)
                lowest = scores.new_full((block.stop - block.start, scores.shape[1]), -torch.inf)
                scores = lowest.scatter_reduce_(0, place, scores, "amax")
            if len(scores) >= k and not np.isfinite(pool.kth).all():
                pool.kth = scores.T.contiguous().topk(k).values[:, -1].cpu().numpy().astype(np.float64)
            places = (scores >= to_device(torch.from_numpy(pool.bounds), device)).nonzero()
            document, query = places.cpu().numpy().T
            pool.add(query, document + block.start, scores[tuple(places.unbind(1))].cpu().numpy())


def _find_by_faiss(pools: list[_Candidates], vectors: Corpus, blocks: list[slice], wanted: int) -> None:
    try:
        import faiss
    except ImportError:
        raise UsageError(
            f"retrieval backend 'faiss': FAISS is not installed; run {install_extra('faiss')}, or use torch"
        ) from None
    index = faiss.IndexFlatIP(vectors.shape[1])
    for block in blocks:
        rows = np.ascontiguousarray(vectors[block], dtype=np.float32)
        index.add(rows)
        for pool in pools:
            pool.longest = max(pool.longest, float(np.linalg.norm(rows, axis=1).max()))
    for pool in pools:
        scores, found = index.search(pool.queries, wanted)
        pool.add(np.repeat(np.arange(len(found)), wanted), found.ravel(), scores.ravel())


def _refuse_not_finite(vectors: Corpus, ids: Sequence[str], what: str) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"{what} {ids[bad[0]]!r}: its vector is not finite; try model.dtype float32, or another checkpoint"
        )
