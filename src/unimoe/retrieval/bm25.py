"""BM25 candidates, and the rankings that the user's cache keeps.

Scores are Lucene's BM25 in float32, those of bm25s to the last bit. With k1 0.9 and b 0.4 nDCG@10 is .680 on SciFact
(published .679) and .320 on NFCorpus (.322).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from unicodedata import unidata_version

import numpy as np
from numpy.typing import NDArray

from unimoe.config import BM25Config, EvaluationConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import atomic_dir, cache_dir, hash_parts, lock, write_json
from unimoe.core.trec import Run, head, write_run
from unimoe.data.collection import Collection
from unimoe.formats.runs import read_run
from unimoe.results import package_versions, safe_name
from unimoe.retrieval.postings import Postings, Words, analyzer_name, damaged, write_postings

BM25Engine = Literal["bm25s", "rank_bm25"]
"""Lucene's BM25 as bm25s computes it, or rank_bm25's BM25Okapi."""

_QUERIES = 32  # that a thread searches for at a time


def engine_of(settings: EvaluationConfig) -> BM25Engine:
    """Return which library's BM25 searches, wherever one does."""
    return "rank_bm25" if settings.first_stage == "rank_bm25" else "bm25s"


class BM25Index:
    """Lucene's BM25 over the postings of one corpus; what a word adds to scores is computed when a query first has it.

    ``params`` have the language.
    """

    def __init__(self, postings: Postings, ids: Sequence[str], params: BM25Config) -> None:
        if len(postings.lengths) != len(ids):
            raise damaged(postings.folder, f"it has {len(postings.lengths):,} documents in place of {len(ids):,}")
        self.postings, self._ids = postings, np.array(ids, dtype=object)
        self._words = Words(params, postings.words)
        mean = postings.lengths.mean() if postings.words else 1.0
        self._norms = params.k1 * ((1 - params.b) + params.b * postings.lengths / mean)
        self._of: dict[int, tuple[NDArray[np.intp], NDArray[np.float32]]] = {}

    @classmethod
    def of(cls, collection: Collection, params: BM25Config, *, kept: bool = False) -> BM25Index:
        """Index a corpus. Its postings, which suit every k1 and b, may be ``kept`` in the user's cache."""
        params = params.in_language(collection.language)
        ids = sorted(collection.corpus)  # of two equal scores the document of the higher number comes first

        def write(folder: Path) -> None:
            write_postings(folder, (collection.corpus[key].full_text for key in ids), Words(params))

        if not kept:
            with TemporaryDirectory() as folder:  # what is mapped outlives its name
                write(Path(folder))
                return cls(Postings.open(Path(folder)), ids, params)
        words = analyzer_name(params)
        place = cache_dir("index") / hash_parts([collection.corpus_hash, words, *_versions("bm25s")])
        with lock(place):
            if not place.exists():
                with atomic_dir(place) as temporary:
                    write(temporary)
            index = cls(Postings.open(place), ids, params)
            write_json(place / "made_from.json", {"model": f"bm25s({words})", "collection": collection.name})
        return index

    def words(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the words of queries that the corpus has, by number."""
        return list(map(self._words.of, texts))

    def search(self, words: Sequence[int], depth: int) -> dict[str, float]:
        """Return the best ``depth`` documents that have one of the words, best first."""
        scores = np.zeros(len(self._ids), dtype=np.float32)
        for word in words:  # in this order, on which the last bit of a sum depends
            np.add.at(scores, *self._of_word(word))
        found = np.flatnonzero(scores >= _lower_bound(scores, depth))
        return _best(self._ids, found, scores[found], depth)

    def _of_word(self, word: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the documents that have a word, and what it adds to their scores."""
        if word not in self._of:
            held = slice(*self.postings.starts[word : word + 2])
            # np.add.at takes a third longer with other numbers than intp.
            documents, counts = self.postings.documents[held].astype(np.intp), self.postings.counts[held].astype(float)
            idf = np.float32(math.log(1 + (len(self._ids) - len(counts) + 0.5) / (len(counts) + 0.5)))
            try:
                scores = idf * (counts / (self._norms[documents] + counts))
            except IndexError as error:
                raise damaged(self.postings.folder, str(error)) from None
            self._of[word] = documents, scores.astype(np.float32)
        return self._of[word]


class OkapiIndex:
    """BM25Okapi over the same words, to compare with numbers that were made with rank_bm25.

    Its idf differs from Lucene's and is floored where it would be negative. It visits all documents in Python, which
    suits some ten thousand.
    """

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        from rank_bm25 import BM25Okapi

        words = Words(params)
        self._ids = np.array(sorted(collection.corpus), dtype=object)
        documents = [words.of(collection.corpus[key].full_text) for key in self._ids]
        self._words = Words(params, words.stems)
        self._index = BM25Okapi(documents, k1=params.k1, b=params.b) if any(documents) else None

    def words(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the words of queries that the corpus has, by number."""
        return list(map(self._words.of, texts))

    def search(self, words: Sequence[int], depth: int) -> dict[str, float]:
        """Return the best ``depth`` documents that have one of the words, best first."""
        if self._index is None or not words:
            return {}
        scores = self._index.get_scores(words).astype(np.float32)
        # A word of half the corpus has idf 0, so that 0 is a score too.
        found = np.flatnonzero([any(word in counts for word in words) for counts in self._index.doc_freqs])
        return _best(self._ids, found, scores[found], depth)


def _lower_bound(scores: NDArray[np.float32], depth: int) -> np.float32:
    """Return a score above 0 that the best ``depth`` documents reach, and few others: a partition takes far longer.

    So many documents at different places, each the best of some, reach the score of the last of these.
    """
    together = len(scores) // (8 * depth)
    least = np.finfo(np.float32).tiny
    if together > 1:
        best = scores[: len(scores) // together * together].reshape(together, -1).max(axis=0)
        least = max(least, np.partition(best, -depth)[-depth])
    return least


def _best(
    ids: NDArray[np.object_], found: NDArray[np.intp], scores: NDArray[np.float32], depth: int
) -> dict[str, float]:
    """Return the ids and scores of the best of the documents found; of equal ones that of the higher number first."""
    found, scores = found[::-1], scores[::-1]
    order = np.argsort(-scores, kind="stable")[:depth]
    return dict(zip(ids[found[order]].tolist(), scores[order].tolist(), strict=True))


def first_stage_name(params: BM25Config, engine: BM25Engine = "bm25s") -> str:
    """Return the name in results, such as ``bm25s(k1=0.9,b=0.4,stemmer=english)``; ``params`` have the language."""
    variant = "BM25Okapi," if engine == "rank_bm25" else ""
    return f"{engine}({variant}k1={params.k1:g},b={params.b:g},{analyzer_name(params)})"


def bm25_run(
    collection: Collection,
    depth: int,
    params: BM25Config,
    *,
    engine: BM25Engine = "bm25s",
    cached: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Run:
    """Rank the documents that share a word with a query, for every query of a collection; keep ``depth``, best first.

    What the collection leaves out goes before the cut. Ties, also those at the cut, break by document id descending, as
    in trec_eval. A ``cached`` run and its index are kept in the user's cache, where other depths, parameters and
    queries find the index. ``advance`` is called with 1 after each query.
    """
    if depth < 1:
        raise UsageError(f"BM25 depth {depth} leaves no candidates; use at least 1")
    params = params.in_language(collection.language)

    def compute() -> Run:
        okapi = engine == "rank_bm25"
        index = OkapiIndex(collection, params) if okapi else BM25Index.of(collection, params, kept=cached)
        run: Run = {}
        for query_id, found in _searched(index, collection, depth):
            run[query_id] = found
            if advance is not None:
                advance(1)
        return run

    if not cached:
        return compute()
    return cached_run(
        bm25_path(collection, params, engine), depth, collection, first_stage_name(params, engine), compute
    )


def bm25_path(collection: Collection, params: BM25Config, engine: BM25Engine = "bm25s") -> Path:
    """Return where the cache keeps rankings, but for their depth; ``params`` have the language."""
    settings = (first_stage_name(params, engine), repr(params.k1), repr(params.b), str(bool(collection.excludes_self)))
    key = hash_parts([collection.corpus_hash, collection.queries_hash, *settings, *_versions(engine)])
    return cache_dir("bm25") / key


def _searched(
    index: BM25Index | OkapiIndex, collection: Collection, depth: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what is found for each query of a collection, in their order; threads search for some each."""
    words = index.words(collection.queries.values())
    asked = list(zip(collection.queries, words, strict=True))

    def search(some: list[tuple[str, list[int]]]) -> Run:
        run = {}
        for query_id, words in some:
            left_out = collection.left_out(query_id)
            found = index.search(words, depth + len(left_out)).items()
            run[query_id] = dict(islice(((key, score) for key, score in found if key not in left_out), depth))
        return run

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(search, (asked[row : row + _QUERIES] for row in range(0, len(asked), _QUERIES))):
            yield from found.items()


def _versions(engine: BM25Engine) -> list[str]:
    """Return what words and a search depend on, with versions: libraries, unimoe too, and Python's table of letters."""
    libraries = ("unimoe", "bm25s", "PyStemmer", *(["rank-bm25"] if engine == "rank_bm25" else []))
    return [f"Unicode {unidata_version}", *map(" ".join, package_versions(libraries).items())]


def kept_run(path: Path, depth: int) -> Path | None:
    """Return the file of a ranking that holds ``depth`` documents of each query or more; None where none is kept.

    ``path`` lacks what names of its files end with: the depth.
    """
    depths = (file.stem.rpartition("-")[2] for file in path.parent.glob(f"{path.name}-*.trec"))
    deep = min((found for found in map(int, filter(str.isdecimal, depths)) if found >= depth), default=None)
    return None if deep is None else run_path(path, deep)


def run_path(path: Path, depth: int) -> Path:
    """Return the file of a ranking of a depth."""
    return path.with_name(f"{path.name}-{depth}.trec")


def cached_run(path: Path, depth: int, collection: Collection, tag: str, compute: Callable[[], Run]) -> Run:
    """Read a run over a collection's queries, or the best of a deeper one; else compute it and write it under a tag.

    ``path`` lacks what names of its files end with: the depth.
    """
    kept = kept_run(path, depth)
    place = kept or run_path(path, depth)
    with lock(place):
        if place.exists():
            try:
                run = read_run(place)
            except DataError as error:
                raise DataError(f"{error}: the file is damaged; delete it, and run again") from None
            place.touch()  # the last use
        elif kept:  # cleared meanwhile
            return cached_run(path, depth, collection, tag, compute)
        else:
            run = compute()
            write_run(place, run, f"{tag}#{safe_name(collection.name)}")  # which ``unimoe cache`` shows
    # A TREC file has no line for a query without candidates.
    return {query_id: head(run.get(query_id, {}), depth) for query_id in collection.queries}
