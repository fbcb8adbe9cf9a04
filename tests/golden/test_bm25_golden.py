"""BM25 against the formula worked by hand, against rank_bm25, and against published figures."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from unimoe.config import BM25Config
from unimoe.data.beir_layout import read_beir
from unimoe.data.collection import Document, assemble
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
def test_published_figures(name: str, published: float) -> None:
    root = os.environ.get("UNIMOE_DATA")
    if root is None or not Path(root, name).is_dir():
        pytest.skip(f"UNIMOE_DATA holds no {name}")
    collection = read_beir(Path(root, name), "test")
    scores = score_run(collection.qrels, bm25_run(collection, 100, BM25Config()), ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx(published, abs=0.005)
