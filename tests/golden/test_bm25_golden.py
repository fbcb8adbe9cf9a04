"""BM25 against the formula worked by hand, against bm25s and rank_bm25, and against published figures."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer
from bm25s.tokenization import Tokenizer
from rank_bm25 import BM25Okapi

from unimoe.config import BM25Config
from unimoe.core.trec import head
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import score_run
from unimoe.retrieval.bm25 import bm25_run

WORDS = [f"w{i}x" for i in range(30)]
K1, B = 0.9, 0.4


def corpus(seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(WORDS, size=rng.integers(3, 25))) for _ in range(80)]


def lucene(texts: list[list[str]], query: list[str]) -> list[float]:
    """Lucene's BM25: idf = ln(1 + (N - n + .5) / (n + .5)), times tf / (tf + k1 (1 - b + b length / mean length))."""
    mean = sum(map(len, texts)) / len(texts)
    holders = {word: sum(word in text for text in texts) for word in query}
    idf = {word: math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for word, n in holders.items()}
    return [
        sum(idf[w] * tf[w] / (tf[w] + K1 * (1 - B + B * len(text) / mean)) for w in query)
        for text in texts
        if (tf := Counter(text))
    ]


def ours(texts: list[list[str]], query: list[str]) -> list[float]:
    documents = [(str(i), Document("", " ".join(text))) for i, text in enumerate(texts)]
    collection = assemble("toy", "test", documents, [("q", " ".join(query))], {"q": {"0": 1}})
    found = bm25_run(collection, len(texts), BM25Config(k1=K1, b=B, stemmer="none"))["q"]
    return [found.get(str(i), 0.0) for i in range(len(texts))]


def test_by_hand() -> None:
    # N = 2, both lengths 2 = the mean, so the denominator is tf + .9; "fox" is in one document: idf = ln 2.
    assert ours([["red", "fox"], ["red", "deer"]], ["fox"]) == pytest.approx([math.log(2) / 1.9, 0], rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_formula(seed: int) -> None:
    texts = corpus(seed)
    for query in (WORDS[:1], WORDS[:5], [WORDS[0], WORDS[0], WORDS[7]]):
        assert ours(texts, query) == pytest.approx(lucene(texts, query), rel=1e-5)


def bm25s_tokenizer(stemmer: str) -> Tokenizer:
    stem = None if stemmer == "none" else Stemmer.Stemmer(stemmer)
    return Tokenizer(splitter=r"\w+", stopwords="english", stemmer=stem)


def bm25s_scores(collection: Collection, params: BM25Config) -> dict[str, list[float]]:
    """What bm25s gives every document of the corpus, by query."""
    tokenizer = bm25s_tokenizer(params.stemmer)
    texts = [document.full_text for document in collection.corpus.values()]
    ids = list(tokenizer.streaming_tokenize(texts, allow_empty=False))
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    tokens = bm25s.tokenization.Tokenized(ids=ids, vocab=tokenizer.get_vocab_dict())
    index.index(tokens, create_empty_token=False, show_progress=False)
    queries = tokenizer.streaming_tokenize(collection.queries.values(), update_vocab=False, allow_empty=False)
    return {
        key: index.get_scores_from_ids(words).tolist() for key, words in zip(collection.queries, queries, strict=True)
    }


def check_against_bm25s(collection: Collection, params: BM25Config, depth: int) -> None:
    run = bm25_run(collection, depth, params)
    for query_id, scores in bm25s_scores(collection, params).items():
        positive = {key: score for key, score in zip(collection.corpus, scores, strict=True) if score > 0}
        assert list(run[query_id].items()) == list(head(positive, depth).items())


@pytest.mark.parametrize("params", [BM25Config(), BM25Config(k1=1.2, b=0.75, stemmer="none"), BM25Config(k1=0, b=1)])
def test_equals_bm25s_to_the_last_bit(params: BM25Config) -> None:
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate([*corpus(0), [], *corpus(1)])]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(2))}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    for depth in (1, 20, 1000):
        check_against_bm25s(collection, params, depth)


@pytest.mark.parametrize("name", ["scifact", "nfcorpus"])
def test_equals_bm25s_on_real_text(unimoe_data: Path, name: str) -> None:
    check_against_bm25s(read_beir(unimoe_data / name, "test"), BM25Config(), 100)


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_bm25_engine_is_rank_bm25(seed: int) -> None:
    texts = corpus(seed)
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate(texts)]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(seed + 10)[:10])}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    run = bm25_run(collection, 20, BM25Config(stemmer="none"), engine="rank_bm25")
    oracle = BM25Okapi(texts, k1=K1, b=B)
    for query_id, query in queries.items():
        scores = dict(zip(collection.corpus, oracle.get_scores(query.split()).tolist(), strict=True))
        assert list(run[query_id]) == list(head(scores, 20))
        assert run[query_id] == pytest.approx(head(scores, 20), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_rank_bm25_where_the_formulas_coincide(seed: int) -> None:
    """For one word both variants are a constant times the same function of tf and length: Okapi's (k1 + 1) idf'.

    With several words their idf differ (Okapi leaves out the 1 + and floors what is negative), so they may rank apart.
    """
    texts = corpus(seed)
    oracle = BM25Okapi(texts, k1=K1, b=B)
    for word in WORDS[:10]:
        n = sum(word in text for text in texts)
        ratio = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) / (oracle.idf[word] * (K1 + 1))
        assert ours(texts, [word]) == pytest.approx(list(oracle.get_scores([word]) * ratio), rel=1e-5)


@pytest.mark.parametrize(("name", "published"), [("scifact", 0.679), ("nfcorpus", 0.322)])
def test_published_figures(unimoe_data: Path, name: str, published: float) -> None:
    collection = read_beir(unimoe_data / name, "test")
    scores = score_run(collection.qrels, bm25_run(collection, 100, BM25Config()), ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx(published, abs=0.005)
