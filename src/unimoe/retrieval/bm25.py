"""BM25 candidates.

Text is title, a space, text; lower case; words are runs of word characters, single ones included as in Lucene; its 33
English stop words are left out; Snowball's English stemmer (``stemmer: none`` leaves words unchanged). Scores are
Lucene's BM25 in float32. With k1 0.9 and b 0.4 nDCG@10 is .680 on SciFact (published .679) and .320 on NFCorpus (.322).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from unimoe.config import BM25Config
from unimoe.core.errors import UsageError
from unimoe.core.io import cache_dir, hash_parts
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.retrieval.bm25_index import BM25Index, OkapiIndex
from unimoe.retrieval.run_cache import cached_run

Engine = Literal["bm25s", "rank_bm25"]
"""Lucene's BM25 as bm25s computes it, or rank_bm25's BM25Okapi."""

Progress = Callable[[int, int], None]
"""Called with the number of queries done and their total."""


def first_stage_name(params: BM25Config, engine: Engine = "bm25s") -> str:
    """Return this first stage's name in results and tables, for example ``bm25s(k1=0.9,b=0.4,stemmer=english)``."""
    variant = "BM25Okapi," if engine == "rank_bm25" else ""
    return f"{engine}({variant}k1={params.k1:g},b={params.b:g},stemmer={params.stemmer})"


def bm25_run(
    collection: Collection,
    depth: int,
    params: BM25Config,
    *,
    engine: Engine = "bm25s",
    exclude_self: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Rank the corpus for every query of the collection.

    Args:
        collection: its judged and unjudged queries are ranked alike.
        depth: documents kept per query, at most; only documents that share a word with the query are kept.
        params: BM25's parameters.
        engine: whose implementation of BM25.
        exclude_self: leave out the document whose id is the query's, before the cut. Right where queries are
            documents too (ArguAna); elsewhere equal numbers drop real documents, as MTEB does on some sets.
        progress: called after every query.

    Returns:
        For every query, ``{document id: score}``, best first; empty where no document matches. Ties, also those at
        the cut, break by document id descending, as in trec_eval.

    Raises:
        UsageError: ``depth`` is below 1.
    """
    if depth < 1:
        raise UsageError(f"BM25 depth {depth} leaves no candidates; use at least 1")
    index = BM25Index(collection, params) if engine == "bm25s" else OkapiIndex(collection, params)
    run: Run = {}
    for done, (query_id, text) in enumerate(collection.queries.items(), start=1):
        run[query_id] = index.search(text, depth, without=query_id if exclude_self else None)
        if progress is not None:
            progress(done, len(collection.queries))
    return run


def cached_bm25_run(
    collection: Collection,
    depth: int,
    params: BM25Config,
    *,
    engine: Engine = "bm25s",
    exclude_self: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Read ``bm25_run``'s result from the user's cache, or compute it and write it there as a TREC run.

    The file's name is a content hash of everything the scores depend on, so a run is never used for other data or
    parameters.
    """
    path = cached_run_path(collection, depth, params, engine=engine, exclude_self=exclude_self)
    return cached_run(
        path,
        collection,
        first_stage_name(params, engine),
        lambda: bm25_run(collection, depth, params, engine=engine, exclude_self=exclude_self, progress=progress),
    )


def cached_run_path(
    collection: Collection, depth: int, params: BM25Config, *, engine: Engine = "bm25s", exclude_self: bool = False
) -> Path:
    """Return where ``cached_bm25_run`` keeps this run, whether it exists yet or not."""
    libraries = ("bm25s", "PyStemmer") if engine == "bm25s" else ("bm25s", "PyStemmer", "rank-bm25")
    versions = (f"{name} {version(name)}" for name in libraries)
    settings = (first_stage_name(params, engine), repr(params.k1), repr(params.b), str(depth), str(exclude_self))
    key = hash_parts([collection.corpus_hash, collection.queries_hash, *settings, *versions])
    return cache_dir("bm25") / f"{key}.trec"
