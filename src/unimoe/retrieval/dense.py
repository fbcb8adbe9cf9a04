"""Exact dense search: the documents whose vectors have the highest inner products with a query's.

torch           blocks of the corpus times all queries; memory does not grow with the corpus, which may be a mapped file
faiss           FAISS's IndexFlatIP, which holds the whole corpus in memory as float32

Both give the same run to the last bit: they find candidates, and ``CandidatePool`` ranks them by exact scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from operator import lt
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run, head
from unimoe.models.matmul import matmul_nt
from unimoe.retrieval.candidates import CandidatePool, Rows, exact_scores

Backend = Literal["torch", "faiss"]

Advance = Callable[[int], None]
"""Called with the number of documents done since the last call."""

Corpus = NDArray[np.floating]

UNIT_LENGTH = 1.001
"""The greatest length of an embedding: 1, and a little for rounding, to float16 at worst."""


def search(
    queries: NDArray[np.float32],
    query_ids: Sequence[str],
    vectors: Corpus,
    ids: Sequence[str],
    k: int,
    *,
    backend: Backend = "torch",
    device: torch.device | str = "cpu",
    exclude_self: bool = False,
    longest: float | None = None,
    block_bytes: int | None = None,
    query_block: int | None = None,
    advance: Advance | None = None,
) -> Run:
    """Find the ``k`` documents of highest inner product for every query.

    Args:
        queries: ``(Q, D)`` float32.
        query_ids: the queries' ids, Q different ones.
        vectors: ``(N, D)`` float32 or float16, in memory or mapped.
        ids: the documents' ids by row, N different ones in any order; ascending ones need no sorting.
        k: documents wanted per query; all N where there are fewer.
        backend: what finds the candidates.
        device: where torch computes.
        exclude_self: leave out the document whose id is the query's, before the cut. Right where queries are
            documents too (ArguAna); elsewhere equal numbers drop real documents, as MTEB does on some sets.
        longest: no document's vector is longer than this (``UNIT_LENGTH`` for embeddings). Without it
            the corpus is read once more to find it, which is slow for a query or two at a time.
        block_bytes: float32 size of a block of the corpus; by default what suits the device.
        query_block: queries multiplied with a block at a time; by default what suits the device.
        advance: called after each block.

    Returns:
        For every query ``{document id: score}``, best first. Scores are float64 products rounded to float32; ties,
        also those at the cut, break by document id descending, as in trec_eval. The same run for every backend,
        device and block size.

    Raises:
        UsageError: ``k`` is below 1, the backend is unknown, or FAISS is not installed.
        DataError: there are no documents, an id occurs twice, shapes do not fit, or a vector is not finite.
    """
    if k < 1:
        raise UsageError(f"dense search for the best {k} documents finds none; ask for at least 1")
    if backend not in get_args(Backend):
        raise UsageError(f"retrieval backend {backend!r}: unknown; use {' or '.join(get_args(Backend))}")
    _check_shapes(queries, query_ids, vectors, ids)
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    with np.errstate(over="ignore"):
        _refuse_not_finite(np.linalg.norm(queries, axis=1), query_ids, "query")
    places = _places(ids)
    own = _own_rows(query_ids, ids) if exclude_self else np.full(len(query_ids), -1)
    device = torch.device(device)
    on_cpu = backend == "faiss" or device.type == "cpu"
    step = query_block or (256 if on_cpu else 4096)
    parts = [slice(begin, begin + step) for begin in range(0, len(query_ids), step)]
    pools = [CandidatePool(queries[part], vectors, places, k) for part in parts]
    suits = 2**25 if on_cpu else 2**29
    rows = max(1, (block_bytes or suits) // (4 * max(1, vectors.shape[1])))
    rows = min(rows, max(1, suits // (4 * max(1, min(step, len(query_ids))))))  # their scores take as much at most
    blocks = [slice(begin, min(begin + rows, len(ids))) for begin in range(0, len(ids), rows)]
    asked = [(queries[part], own[part]) for part in parts]
    if backend == "faiss":
        _fill_by_faiss(pools, asked, vectors, ids, k, blocks, advance)
    else:
        with _whole_products():
            _fill_by_torch(pools, asked, vectors, ids, k, blocks, device, longest, advance)
    run: Run = {}
    for part, pool in zip(parts, pools, strict=True):
        for query_id, (found, scores) in zip(query_ids[part], pool.best(), strict=True):
            run[query_id] = dict(zip((ids[row] for row in found.tolist()), scores.tolist(), strict=True))
    return run


def search_among(
    queries: Corpus,
    query_ids: Sequence[str],
    vectors: Corpus,
    ids: Sequence[str],
    candidates: Mapping[str, Sequence[str]],
    k: int,
) -> Run:
    """Rank for every query the documents that are given, the best ``k`` of them, with the scores of ``search``.

    Args:
        queries: ``(Q, D)`` float32.
        query_ids: the queries' ids.
        vectors: ``(N, D)``, in memory or mapped.
        ids: the documents' ids by row.
        candidates: query id to the ids of documents, each of them among ``ids``.
        k: documents wanted per query.
    """
    row_of = {document_id: row for row, document_id in enumerate(ids)}
    run: Run = {}
    for query, query_id in enumerate(query_ids):
        found = candidates[query_id]
        rows = np.array([row_of[document_id] for document_id in found], dtype=np.int64)
        scores = exact_scores(queries, np.full(len(rows), query), vectors, rows)
        run[query_id] = dict(zip(found, scores.tolist(), strict=True))
        if len(found) > k:
            run[query_id] = head(run[query_id], k)
    return run


_Queries = list[tuple[NDArray[np.float32], Rows]]
"""Parts of the queries: their vectors, and for each the row of its own document, -1 where there is none."""


def _fill_by_torch(
    pools: list[CandidatePool],
    queries: _Queries,
    vectors: Corpus,
    ids: Sequence[str],
    k: int,
    blocks: list[slice],
    device: torch.device,
    longest: float | None,
    advance: Advance | None,
) -> None:
    corpus, longest_query = _as_tensor(vectors), _longest(queries)
    held = [torch.from_numpy(part).to(device) for part, _ in queries]
    size = blocks[0].stop
    scores = torch.empty(size * max(map(len, held), default=0), device=device)
    # The GPU copies at full speed from pinned memory only, which a mapped file is not.
    pinned = torch.empty((size, corpus.shape[1]), pin_memory=True) if device.type == "cuda" else None
    for block in blocks:
        rows = _to_device(corpus[block], pinned, device)
        length = _longest_row(rows, block, ids, longest_query) if longest is None else longest
        for pool, part, (_, own) in zip(pools, held, queries, strict=True):
            pool.widen(length)
            out = scores[: len(rows) * len(part)].view(len(rows), len(part))
            # Documents first: in this order the product is up to twice as fast for a few dozen queries.
            out = matmul_nt(rows, part, out=out)
            if longest is not None and not bool(out.sum().isfinite()):
                _longest_row(rows, block, ids, longest_query)  # names the document
            mine = np.flatnonzero((own >= block.start) & (own < block.stop))
            out[torch.from_numpy(own[mine] - block.start).to(device), torch.from_numpy(mine).to(device)] = -torch.inf
            if not pool.decided and len(rows) >= k:
                pool.raise_kth(out.T.contiguous().topk(k).values[:, -1].cpu().numpy())
            row, query = (out >= torch.from_numpy(pool.bounds).to(device)).nonzero(as_tuple=True)
            pool.add(query.cpu().numpy(), row.cpu().numpy() + block.start, out[row, query].cpu().numpy())
        if advance:
            advance(len(rows))


def _fill_by_faiss(
    pools: list[CandidatePool],
    queries: _Queries,
    vectors: Corpus,
    ids: Sequence[str],
    k: int,
    blocks: list[slice],
    advance: Advance | None,
) -> None:
    index, length = _faiss_index(vectors.shape[1]), 0.0
    corpus, longest_query = _as_tensor(vectors), _longest(queries)
    for block in blocks:
        rows = corpus[block].float().contiguous()
        length = max(length, _longest_row(rows, block, ids, longest_query))
        index.add(rows.numpy())
        if advance:
            advance(len(rows))
    wanted = min(k, len(ids)) + k // 8 + 9  # one may be the query's own, and some may be within the error of the last
    for pool, (part, own) in zip(pools, queries, strict=True):
        pool.widen(length)
        scores, found = index.search(part, wanted)
        real = (found >= 0) & (found != own[:, None])  # FAISS pads with -1
        query, column = np.nonzero(real)
        pool.add(query, found[query, column], scores[query, column])
        pool.tighten()
        lacking = np.flatnonzero((found[:, -1] >= 0) & (scores[:, -1] >= pool.bounds))
        for number in lacking.tolist():
            below = float(np.nextafter(pool.bounds[number], np.float32(-np.inf)))
            _, more_scores, more = index.range_search(part[number : number + 1], below)
            new = ~np.isin(more, found[number]) & (more != own[number])
            pool.add(np.full(new.sum(), number), more[new], more_scores[new])


@contextmanager
def _whole_products() -> Iterator[None]:
    """Compute products of float32 in float32: TF32 and bfloat16 lose more than the pools expect.

    A program may ask torch for these, and so may TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _faiss_index(width: int) -> Any:
    try:
        import faiss
    except ImportError:
        raise UsageError(
            "retrieval backend 'faiss': FAISS is not installed; run uv sync --extra faiss, or use torch"
        ) from None
    return faiss.IndexFlatIP(width)


def _as_tensor(vectors: Corpus) -> torch.Tensor:
    with warnings.catch_warnings():  # torch warns of arrays it must not write to; nothing writes here
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(vectors))


def _to_device(rows: torch.Tensor, pinned: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Return a block as float32 on the device; on a CPU float32 rows are not copied."""
    if pinned is None:
        return rows.to(device, torch.float32)
    return pinned[: len(rows)].copy_(rows).to(device, non_blocking=True)


def _longest(queries: _Queries) -> float:
    return max((float(np.linalg.norm(part, axis=1).max()) for part, _ in queries), default=0.0)


def _longest_row(rows: torch.Tensor, block: slice, ids: Sequence[str], longest_query: float) -> float:
    """Return the greatest length of a block's vectors; refuse a block whose products may not be finite."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    longest = float(lengths.max())
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(longest) * np.float32(longest_query)):
            products = lengths.cpu().numpy() * np.float32(max(longest_query, 1.0))
            _refuse_not_finite(products, ids[block], "document")
    return longest


def _refuse_not_finite(lengths: NDArray[np.float32], ids: Sequence[str], what: str) -> None:
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        raise DataError(
            f"{what} {ids[bad[0]]!r}: its vector is not finite, or too long for float32; "
            "try model.dtype float32, or another checkpoint"
        )


def _check_shapes(queries: NDArray[np.float32], query_ids: Sequence[str], vectors: Corpus, ids: Sequence[str]) -> None:
    for array, names, what in ((queries, query_ids, "queries"), (vectors, ids, "documents")):
        if array.ndim != 2 or len(array) != len(names):
            raise DataError(f"{len(names)} {what} need one vector each, but the array has shape {array.shape}")
    if not len(ids):
        raise DataError("dense search among no documents; the corpus is empty")
    if queries.shape[1] != vectors.shape[1]:
        raise DataError(
            f"the queries' vectors have {queries.shape[1]} dimensions, the documents' {vectors.shape[1]}; "
            "embed both with the same model"
        )
    if len(set(query_ids)) != len(query_ids):
        raise DataError("a query id occurs twice; give every query its own")


def _places(ids: Sequence[str]) -> Rows | None:
    """Return each row's number in the ascending order of ids; None where they ascend already."""
    if all(map(lt, ids, islice(ids, 1, None))):
        return None
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for before, after in pairwise(order):
        if ids[before] == ids[after]:
            raise DataError(f"document id {ids[after]!r} is at rows {before} and {after}; give every row its own")
    places = np.empty(len(ids), dtype=np.int64)
    places[order] = np.arange(len(ids))
    return places


def _own_rows(query_ids: Sequence[str], ids: Sequence[str]) -> Rows:
    wanted = set(query_ids)
    rows = {document_id: row for row, document_id in enumerate(ids) if document_id in wanted}
    return np.array([rows.get(query_id, -1) for query_id in query_ids], dtype=np.int64)
