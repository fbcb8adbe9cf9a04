"""BM25 candidates through bm25s.

Text is title, a space, text; lower case; words are runs of word characters, single ones included as in Lucene; its 33
English stop words are left out; Snowball's English stemmer (``stemmer: none`` leaves words as they are). Scores are
Lucene's BM25 in float32. With k1 0.9 and b 0.4 nDCG@10 is .680 on SciFact (published .679) and .320 on NFCorpus (.322).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unimoe.config import BM25Config
from unimoe.data.collection import Collection
from unimoe.errors import DataError, UsageError
from unimoe.io import cache_dir, hash_file, hash_parts, lock, read_json, write_json
from unimoe.trec import Run, read_run, write_run

WORD = r"\w+"

Progress = Callable[[int, int], None]
"""Called with the number of queries done and their total."""


def first_stage_name(params: BM25Config) -> str:
    """How results and tables name this first stage, for example ``bm25s(k1=0.9,b=0.4,stemmer=english)``."""
    return f"bm25s(k1={params.k1:g},b={params.b:g},stemmer={params.stemmer})"


def bm25_run(
    collection: Collection,
    depth: int,
    params: BM25Config,
    *,
    exclude_self: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Rank the corpus for every query of the collection.

    Args:
        collection: its judged and unjudged queries are ranked alike.
        depth: documents kept per query, at most; only documents that share a word with the query are kept.
        params: BM25's parameters.
        exclude_self: leave out the document whose id is the query's, before the cut. Right where queries and
            documents share ids (ArguAna, Quora), wrong elsewhere: equal numbers would drop real documents.
        progress: called after every query.

    Returns:
        For every query, ``{document id: score}``, best first; empty where no document matches. Ties, also those at
        the cut, break by document id descending, as in trec_eval.

    Raises:
        UsageError: ``depth`` is below 1.
    """
    if depth < 1:
        raise UsageError(f"BM25 depth {depth} leaves no candidates; use at least 1")
    index = BM25Index(collection, params)
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
    exclude_self: bool = False,
    progress: Progress | None = None,
) -> Run:
    """``bm25_run``, kept as a TREC run in the user's cache.

    The file's name is a content hash of everything the scores depend on, so a run is never served for other data or
    parameters. Beside it stands the hash of its content: a file that was cut or changed is made anew.
    """
    path = cached_run_path(collection, depth, params, exclude_self=exclude_self)
    with lock(path):
        run = _read_cached(path)
        if run is None:
            run = bm25_run(collection, depth, params, exclude_self=exclude_self, progress=progress)
            write_run(path, run, first_stage_name(params))
            write_json(path.with_suffix(".json"), {"collection": collection.name, "run": hash_file(path)})
    # A TREC file has no line for a query without candidates.
    return {query_id: run.get(query_id, {}) for query_id in collection.queries}


def cached_run_path(collection: Collection, depth: int, params: BM25Config, *, exclude_self: bool = False) -> Path:
    """Where ``cached_bm25_run`` keeps this run, whether it exists yet or not."""
    libraries = (f"{name} {version(name)}" for name in ("bm25s", "PyStemmer"))
    settings = (first_stage_name(params), repr(params.k1), repr(params.b), str(depth), str(exclude_self))
    key = hash_parts([collection.corpus_hash, collection.queries_hash, *settings, *libraries])
    return cache_dir("bm25") / f"{key}.trec"


class BM25Index:
    """The inverted index of one corpus, held in memory."""

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        import bm25s
        import Stemmer

        # bm25s sets its own logger to DEBUG on import.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._tokenizer = bm25s.tokenization.Tokenizer(
            splitter=WORD,
            stopwords="english",
            stemmer=None if params.stemmer == "none" else Stemmer.Stemmer(params.stemmer),
        )
        self._ids = np.array(list(collection.corpus), dtype=object)
        self._order = _descending_place(self._ids)
        self._place = {key: place for place, key in enumerate(collection.corpus)}
        # Arrays of 4-byte ids: a quarter of the memory of lists, which counts at 9 million passages.
        documents = [array("i", ids) for ids in self._tokens((d.full_text for d in collection.corpus.values()), True)]
        self._index: bm25s.BM25 | None = None
        vocabulary = self._tokenizer.get_vocab_dict()
        if vocabulary:
            self._index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene", csc_backend="scipy")
            tokenized = bm25s.tokenization.Tokenized(ids=documents, vocab=vocabulary)
            self._index.index(tokenized, create_empty_token=False, show_progress=False)

    def search(self, text: str, depth: int, *, without: str | None = None) -> dict[str, float]:
        """The best ``depth`` documents for one query text, best first, ``without`` one document id."""
        (tokens,) = self._tokens([text], False)
        if self._index is None or not tokens:
            return {}
        scores = self._index.get_scores_from_ids(tokens)
        if without in self._place:
            scores[self._place[without]] = 0.0
        best = _best(scores, depth, self._order)
        return dict(zip(self._ids[best].tolist(), scores[best].tolist(), strict=True))

    def _tokens(self, texts: Iterable[str], update: bool) -> Iterator[list[int]]:
        # Without allow_empty=False an empty query would match every empty document.
        stream: Iterator[list[int]] = self._tokenizer.streaming_tokenize(texts, update_vocab=update, allow_empty=False)
        return stream


def _descending_place(ids: NDArray[np.object_]) -> NDArray[np.int64]:
    """Each id's place when ids are sorted from last to first: what breaks ties between scores."""
    place = np.empty(len(ids), dtype=np.int64)
    place[np.argsort(ids)[::-1]] = np.arange(len(ids))
    return place


def _best(scores: NDArray[np.float32], depth: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the ``depth`` best positive scores, best first, ties by ``order``."""
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > depth:
        positive = scores[candidates]
        cut = np.partition(positive, len(positive) - depth)[len(positive) - depth]
        candidates = candidates[positive >= cut]
    return candidates[np.lexsort((order[candidates], -scores[candidates]))][:depth]


def _read_cached(path: Path) -> Run | None:
    try:
        sound = read_json(path.with_suffix(".json"))["run"] == hash_file(path)
        return read_run(path) if sound else None
    except (DataError, OSError, KeyError, TypeError):
        return None
