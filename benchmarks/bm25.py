"""BM25's top 100 against bm25s, tantivy and rank_bm25.

    uv run --group benchmarks benchmarks/bm25.py [--documents 100000]

All search made-up documents on one core, with the index built beforehand; ours starts from the query's text and ends
with ids. bm25s starts from the query's tokens: by numba where it is installed, which is its fastest way, else by numpy.
tantivy, where it is installed, parses the text by its default analyzer. rank_bm25 visits all documents in Python, so
it gets a few queries.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from timing import in_turn, seconds
from unimoe.config import BM25Config
from unimoe.data.collection import Collection, Document
from unimoe.retrieval.bm25 import BM25Index
from unimoe.retrieval.postings import Words

ROUNDS, DEPTH, PARAMS = 7, 100, BM25Config()
QUERIES, FEW = 500, 5
WORDS, VOCABULARY, FREQUENT = 60, 200_000, 30

Search = Callable[[], object]


def made_up(documents: int) -> Collection:
    """Documents of 60 words by Zipf's law, and queries of eight of them that are not among the 30 most frequent."""
    rng = np.random.default_rng(0)
    share = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    names = np.array([f"w{number:x}" for number in range(VOCABULARY)], dtype=object)

    def text(words: int, skipped: int = 0) -> str:
        low = share[skipped - 1] if skipped else 0.0
        return " ".join(names[np.searchsorted(share, rng.uniform(low, share[-1], words))])

    corpus = {f"d{number}": Document("", text(WORDS)) for number in range(documents)}
    queries = {f"q{number}": text(8, FREQUENT) for number in range(QUERIES)}
    return Collection("made up", "test", corpus, queries, {"q0": {"d0": 1}})


def own_search(index: BM25Index, queries: list[str]) -> Search:
    """Ours, one query after the other."""
    return lambda: [index.search(words, DEPTH) for words in index.words(queries)]


def bm25s_search(collection: Collection, queries: list[str]) -> Search:
    """bm25s', all queries in one call."""
    library: Any = importlib.import_module("bm25s")
    words = Words(PARAMS)
    documents = [words.of(document.full_text) for document in collection.corpus.values()]
    fastest = {"backend": "numba"} if find_spec("numba") else {"csc_backend": "scipy"}
    index = library.BM25(k1=PARAMS.k1, b=PARAMS.b, method="lucene", **fastest)
    tokens = library.tokenization.Tokenized(ids=documents, vocab=words.stems)
    index.index(tokens, create_empty_token=False, show_progress=False)
    asked = [words.of(query) for query in queries]
    return partial(index.retrieve, asked, k=DEPTH, show_progress=False)


def tantivy_search(collection: Collection, queries: list[str]) -> Search | None:
    """tantivy's, one query after the other; None where it is not installed."""
    if not find_spec("tantivy"):
        return None
    library: Any = importlib.import_module("tantivy")
    builder = library.SchemaBuilder()
    builder.add_text_field("text", stored=False)
    index = library.Index(builder.build())
    writer = index.writer(num_threads=1)
    for document in collection.corpus.values():
        writer.add_document(library.Document(text=document.full_text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    return lambda: [searcher.search(index.parse_query(query, ["text"]), DEPTH).hits for query in queries]


def rank_bm25_search(collection: Collection, queries: list[str]) -> Search:
    """rank_bm25's, one query after the other."""
    from rank_bm25 import BM25Okapi

    words = Words(PARAMS)
    index = BM25Okapi([words.of(one.full_text) for one in collection.corpus.values()], k1=PARAMS.k1, b=PARAMS.b)
    asked, ids = [words.of(query) for query in queries], list(collection.corpus)
    return lambda: [index.get_top_n(query, ids, DEPTH) for query in asked]


def print_floor(index: BM25Index, queries: list[str], own: float) -> None:
    """What no search of all postings can avoid: reading document number and score of every one of the query's words."""
    sizes = np.diff(index.postings.starts)
    postings = statistics.mean(int(sizes[words].sum()) for words in index.words(queries))
    buffer = np.ones(1 << 22, dtype=np.float32)
    rate = buffer.nbytes / statistics.median(seconds(buffer.sum) for _ in range(ROUNDS))
    floor = postings * 8 / rate * 1e6
    print(
        f"floor {floor:.1f} us: {postings:,.0f} postings a query, {postings * 8 / 1e3:.0f} kB, read once at "
        f"{rate / 1e9:.0f} GB/s; ours takes {own / floor:.0f} times that"
    )


def described_cpu() -> str:
    """The processor; torch, which names it, takes more memory than an index."""
    import torch

    from unimoe.models.device import describe_device

    return describe_device(torch.device("cpu"))


def main() -> None:
    """Measure and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--index-alone", action="store_true", help="measure no search, which takes more memory")
    options = parser.parse_args()
    collection = made_up(options.documents)
    start = time.perf_counter()
    index = BM25Index.of(collection, PARAMS)
    found: dict[str, float] = {"index_s": round(time.perf_counter() - start, 1)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # with the texts
    found["peak_mib"] = round(peak)
    print(f"{described_cpu()}, numpy {np.__version__}")
    if not options.index_alone:
        queries = list(collection.queries.values())
        own, few = own_search(index, queries), queries[:FEW]
        title = f"{len(collection.corpus):,} documents, {len(queries)} queries"
        taken = in_turn(f"bm25s, {title}", own, bm25s_search(collection, queries), ROUNDS)
        found |= {"us_per_query": round(taken.own / len(queries) * 1e6, 1), "vs_bm25s": round(taken.ratio, 2)}
        if peer := tantivy_search(collection, queries):
            found["vs_tantivy"] = round(in_turn(f"tantivy, {title}", own, peer, ROUNDS).ratio, 2)
        by_rank_bm25 = rank_bm25_search(collection, few)
        found["vs_rank_bm25"] = round(
            in_turn(f"rank_bm25, {FEW} queries", own_search(index, few), by_rank_bm25, 3).ratio
        )
        print_floor(index, queries, found["us_per_query"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
