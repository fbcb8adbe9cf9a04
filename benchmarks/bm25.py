"""BM25's top 100 against rank_bm25.

    UNIMOE_DATA=DIR uv run benchmarks/bm25.py

Both rank all test queries of SciFact (of the bundled collection where UNIMOE_DATA holds no SciFact) by the same tokens,
with the index built beforehand, on one core. Ours starts from the query's text and ends with a run; the peer,
``BM25Okapi.get_top_n``, starts from the query's tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch
from rank_bm25 import BM25Okapi

from timing import in_turn, seconds
from unimoe.config import BM25Config
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection
from unimoe.models.device import describe_device
from unimoe.retrieval.bm25 import BM25Index, make_tokenizer

ROUNDS, DEPTH, PARAMS = 7, 100, BM25Config()


def compare(collection: Collection) -> tuple[float, float]:
    """Microseconds per query of ours, and rank_bm25's time over it; prints both, the spread and the floor."""
    queries, ids = list(collection.queries.values()), list(collection.corpus)
    start = time.perf_counter()
    index = BM25Index(collection, PARAMS)
    indexed, tokenizer = time.perf_counter(), make_tokenizer(PARAMS)
    documents = list(tokenizer.streaming_tokenize((d.full_text for d in collection.corpus.values()), allow_empty=False))
    analyzed = time.perf_counter()
    okapi = BM25Okapi(documents, k1=PARAMS.k1, b=PARAMS.b)
    peer_indexed = time.perf_counter()
    tokens = list(tokenizer.streaming_tokenize(queries, update_vocab=False, allow_empty=False))

    def ours() -> None:
        for query in queries:
            index.search(query, DEPTH)

    def peer() -> None:
        for query in tokens:
            okapi.get_top_n(query, ids, DEPTH)

    taken = in_turn(f"{collection.name}, {len(ids):,} documents, {len(queries)} queries", ours, peer, ROUNDS)
    own = taken.own / len(queries) * 1e6
    print(
        f"index: ours {indexed - start:.2f} s; rank_bm25 {peer_indexed - analyzed:.2f} s, "
        f"and {analyzed - indexed:.2f} s for the tokens that it is given"
    )
    print_floor(okapi, tokens, own)
    return own, taken.ratio


def print_floor(okapi: BM25Okapi, tokens: list[list[int]], own: float) -> None:
    """What no search can avoid: reading document number and score of every posting of the query's words."""
    holders: dict[int, int] = {}
    for counts in okapi.doc_freqs:
        for word in counts:
            holders[word] = holders.get(word, 0) + 1
    postings = statistics.mean(sum(holders[word] for word in query) for query in tokens)
    buffer = np.ones(1 << 22, dtype=np.float32)
    rate = buffer.nbytes / statistics.median(seconds(buffer.sum) for _ in range(ROUNDS))
    floor = postings * 8 / rate * 1e6
    print(
        f"floor {floor:.1f} us: {postings:,.0f} postings a query, {postings * 8 / 1e3:.0f} kB, read once at "
        f"{rate / 1e9:.0f} GB/s; ours takes {own / floor:.0f} times that"
    )


def main() -> None:
    """Measure and print one JSON object as the last line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    name = "scifact" if available("scifact") else "apidocs"
    if name == "apidocs":
        print("no SciFact under UNIMOE_DATA: measured on the bundled collection instead")
    print(f"{describe_device(torch.device('cpu'))}, numpy {np.__version__}")
    own, ratio = compare(load_collection(name, "test"))
    print(json.dumps({"vs_rank_bm25": round(ratio), "us_per_query": round(own, 1)}))


if __name__ == "__main__":
    main()
